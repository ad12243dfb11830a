"""`rollcage verify`: what was changed, removed, added or damaged is found."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, open_store
from rollcage.errors import RollcageError
from rollcage.trace.chain import chained
from rollcage.trace.recorded import trace_of
from rollcage_cli.verify import verify_log

Cli = Callable[..., Any]
Record = Callable[..., str]
Lines = list[bytes]


def test_a_whole_run(cli: Cli, record: Record) -> None:
    run = record()
    result = cli("verify", run)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("whole: ")
    data = cli("verify", run, "--json").data
    assert data.keys() == {
        "ok", "run", "where", "lines", "head", "findings", "notes", "standing",
    }  # fmt: skip
    assert data["ok"] is True
    assert data["findings"] == data["notes"] == []


def test_a_cut_behind_a_whole_line_is_named(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    log = open_store(store).open(run)
    lines = log.read()
    log.replace(lines[:-1])
    log.close()
    result = cli("verify", run)
    assert result.code == 3
    assert f"line {len(lines) - 1}: cut: the log ends here, and went on" in result.out
    result = cli("doctor")
    assert result.code == 3
    assert "is missing" in result.out


def test_floats_and_large_values_and_replays_are_whole(cli: Cli, store: Path, tools: Any) -> None:
    for replay in ("off", "resume"):
        with Session("job", store=store, replay=replay) as session:
            tools.put("big", "x" * 100_000)
            session.call(scale, by=1e-7, at=[0.1, 2.0, 1e300, -0.0])
            session.call(big)
        assert cli("verify", session.run_id).out.startswith("whole")


def test_branches_are_whole_what_was_done_in_them_or_not(cli: Cli, store: Path, tools: Any) -> None:
    for replay in ("off", "resume"):
        with Session("job", store=store, replay=replay) as session:
            with session.branch("empty"):
                pass
            with session.branch("agent"):
                tools.put("a", "b")
        assert cli("verify", session.run_id).out.startswith("whole")
        assert cli("show", session.run_id).code == 0


def scale(by: float, at: list[float]) -> float:
    return by


def big() -> str:
    return "y" * 100_000


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:3], lines[3].replace(b"b.txt", b"c.txt"), *lines[4:]],
        lambda lines: lines[:3] + lines[4:],
        lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
        lambda lines: [*lines[:3], b"nonsense\n", *lines[3:]],
        lambda lines: [lines[0], *lines],
    ],
    ids=["edited", "removed", "swapped", "added", "doubled"],
)
def test_a_changed_line_is_found(
    cli: Cli, record: Record, edit: Any, change: Callable[[Lines], Lines]
) -> None:
    run = record()
    edit(run, change)
    result = cli("verify", run)
    assert result.code == 3
    assert "damaged: 1 found" in result.out
    data = cli("verify", run, "--json")
    assert (data.code, data.data["ok"]) == (3, False)
    assert data.data["findings"][0]["code"] == "chain"


def test_the_end_of_an_unfinished_run_is_not_attested(cli: Cli, dead: str, edit: Any) -> None:
    result = cli("verify", dead)
    assert result.code == 0
    assert "its last attempt has not ended" in result.out


def test_a_torn_tail_of_a_file_is_reported(
    cli: Cli, dead: str, store: Path, tmp_path: Path
) -> None:
    lone = tmp_path / "kept.jsonl"
    lone.write_bytes((store / "logs" / f"{dead}.jsonl").read_bytes() + b'{"event":"st')
    assert cli("verify", lone).code == 0
    assert "a torn last line of 12 bytes" in cli("verify", lone).out


# --- a forger who knows the hash chain ------------------------------------------------------------


def forge(change: Callable[[list[Any]], None]) -> Callable[[Lines], Lines]:
    """Change events and seal them anew: only what the lines say of each other can show it."""

    def forged(lines: Lines) -> Lines:
        events = [orjson.loads(line) for line in lines]
        change(events)
        for event in events:
            event.pop("hash", None)
        return chained(events)

    return forged


def first(events: list[Any], kind: str) -> Any:
    return next(event for event in events if event["event"] == kind)


def change_arguments(events: list[Any]) -> None:
    first(events, "step")["args"]["path"] = "other.txt"


def change_key(events: list[Any]) -> None:
    first(events, "step")["key"] = "0" * 64


def finish_a_stranger(events: list[Any]) -> None:
    first(events, "outcome")["step"] = 99


def begin_twice(events: list[Any]) -> None:
    events.insert(2, {**first(events, "step")})


def start_twice(events: list[Any]) -> None:
    events.insert(1, {**events[0]})


def be_another_run(events: list[Any]) -> None:
    events[0]["run"] = "01890a5d-ac96-774b-bcce-b302099a8057"


def break_the_schema(events: list[Any]) -> None:
    first(events, "step")["effect"] = "magic"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (change_arguments, "key"),
        (change_key, "key"),
        (finish_a_stranger, "order"),
        (begin_twice, "order"),
        (start_twice, "order"),
        (be_another_run, "order"),
        (break_the_schema, "schema"),
    ],
)
def test_a_forged_line_contradicts_the_others(
    cli: Cli, record: Record, edit: Any, change: Any, code: str
) -> None:
    run = record()
    edit(run, forge(change))
    result = cli("verify", run, "--json")
    assert result.code == 3
    assert code in {finding["code"] for finding in result.data["findings"]}


def test_a_large_value_that_is_not_there(cli: Cli, record: Record, edit: Any) -> None:
    run = record()

    def change(events: list[Any]) -> None:
        named = {"$rollcage": "blob", "value": None, "sha256": "0" * 64, "size": 8}
        first(events, "step")["args"]["path"] = named

    edit(run, forge(change))
    codes = [f["code"] for f in cli("verify", run, "--json").data["findings"]]
    assert "blob" in codes


def test_what_a_finding_quotes_is_harmless(cli: Cli, record: Record, edit: Any, evil: str) -> None:
    run = record()

    def change(events: list[Any]) -> None:
        events[0]["run"] = evil

    edit(run, forge(change))
    out = cli("verify", run).out
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(out)


def test_many_lines_show_their_progress_on_a_terminal_only(store: Path) -> None:
    with Session("long", store=store, gate=[]) as session:
        for index in range(2600):
            session.call(count, index=index)
    code = (
        "import os, pty, sys\n"
        "command = [sys.executable, '-m', 'rollcage', 'verify', 'latest']\n"
        "sys.exit(os.waitstatus_to_exitcode(pty.spawn(command)))\n"
    )
    command = [sys.executable, "-c", code]
    seen = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert seen.returncode == 0
    assert b"verifying" in seen.stdout
    piped = subprocess.run(
        [sys.executable, "-m", "rollcage", "verify", "latest"], capture_output=True, check=True
    )
    assert piped.stdout.startswith(b"whole: 5203 lines")
    assert piped.stderr == b""


def count(index: int) -> int:
    return index


def test_no_byte_of_a_run_can_change(store: Path, tools: Any) -> None:
    with Session("job", store=store) as session:
        tools.put("a", "b")
    own, run = open_store(store), session.run_id
    path = store / "logs" / f"{run}.jsonl"
    whole = path.read_bytes()

    def is_whole() -> bool:
        try:
            return verify_log(trace_of(own, run), own).ok
        except RollcageError:
            return False

    assert is_whole()
    ends = {at for at, byte in enumerate(whole) if byte == 10}
    for at in range(len(whole)):
        if at in ends:
            continue  # a line without its end is torn: it never counted
        for changed in (
            whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            whole[:at] + whole[at + 1 :],
        ):
            path.write_bytes(changed)
            assert not is_whole(), (at, changed)
