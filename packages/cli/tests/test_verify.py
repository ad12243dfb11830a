"""`rollcage verify`: what was changed, removed, added or damaged is found."""

import re
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session
from rollcage.store import JsonlStore
from rollcage.trace import CHAIN_START, seal_line
from rollcage_cli.verify import verify_trace

Cli = Callable[..., Any]
Record = Callable[..., str]
Lines = list[bytes]


def test_a_whole_run(cli: Cli, record: Record) -> None:
    run = record()
    result = cli("verify", run)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("whole: ")
    assert "its end attested by the index" in result.out
    data = cli("verify", run, "--json").data
    assert data.keys() == {
        "ok", "run", "where", "lines", "head", "attested", "torn_bytes", "findings", "notes",
        "standing",
    }  # fmt: skip
    assert data["ok"] is True
    assert data["attested"] is True
    assert data["findings"] == data["notes"] == []


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
        lambda lines: [],
    ],
    ids=["edited", "removed", "swapped", "added", "doubled", "emptied"],
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


def test_a_cut_off_end_is_found_by_the_index(cli: Cli, record: Record, edit: Any) -> None:
    run = record()
    edit(run, lambda lines: lines[:-2])
    (finding,) = cli("verify", run, "--json").data["findings"]
    assert finding["code"] == "attestation"


def test_the_end_of_an_unfinished_run_is_not_attested(cli: Cli, dead: str, edit: Any) -> None:
    result = cli("verify", dead)
    assert result.code == 0
    assert "the run is unfinished: its tail can't be attested" in result.out
    assert cli("verify", dead, "--json").data["attested"] is False


def test_a_torn_tail_is_reported(cli: Cli, dead: str, store: Path) -> None:
    with (store / "logs" / f"{dead}.jsonl").open("ab") as trace:
        trace.write(b'{"event":"st')
    result = cli("verify", dead, "--json")
    assert (result.code, result.data["torn_bytes"]) == (0, 12)
    assert "a torn last line of 12 bytes" in cli("verify", dead).out


def test_bytes_after_a_finished_run_are_found(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    with (store / "logs" / f"{run}.jsonl").open("ab") as trace:
        trace.write(b"x")
    result = cli("verify", run, "--json")
    assert (result.code, result.data["findings"][0]["code"]) == (3, "torn")


def test_a_lost_index_is_reported(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    (store / "index.jsonl").unlink()
    result = cli("verify", run)
    assert result.code == 0
    assert "its end is attested by nothing but its own run.finished line" in result.out


def test_an_index_that_says_otherwise(cli: Cli, record: Record, store: Path) -> None:
    run = record("job")
    index = store / "index.jsonl"
    unchecked = re.sub(rb',"check":"[0-9a-f]{8}"', b"", index.read_bytes())  # by an old version
    index.write_bytes(unchecked.replace(b'"name":"job"', b'"name":"jib"'))
    (finding,) = cli("verify", run, "--json").data["findings"]
    assert finding["code"] == "index"


def test_blobs_are_there_and_intact(cli: Cli, store: Path, tools: Any) -> None:
    with Session("job", store=store) as session:
        tools.put("big", "x" * 100_000)
    (blob,) = (p for p in (store / "blobs").rglob("*") if p.is_file())
    data = blob.read_bytes()
    blob.write_bytes(data.replace(b"x", b"y", 1))
    assert [f["code"] for f in cli("verify", session.run_id, "--json").data["findings"]] == ["blob"]
    blob.unlink()
    result = cli("verify", session.run_id)
    assert result.code == 3
    assert "is missing" in result.out


# --- a forger who knows the hash chain ------------------------------------------------------------


def forge(change: Callable[[list[Any]], None]) -> Callable[[Lines], Lines]:
    """Change events and seal them anew: only what the lines say of each other can show it."""

    def forged(lines: Lines) -> Lines:
        events = [orjson.loads(line) for line in lines]
        change(events)
        head, sealed = CHAIN_START, []
        for event in events:
            event.pop("hash", None)
            line, head = seal_line(event, head)
            sealed.append(line)
        return sealed

    return forged


def first(events: list[Any], kind: str) -> Any:
    return next(event for event in events if event["event"] == kind)


def change_arguments(events: list[Any]) -> None:
    first(events, "step.started")["args"]["path"] = "other.txt"


def change_key(events: list[Any]) -> None:
    first(events, "step.started")["key"] = "0" * 64


def change_world(events: list[Any]) -> None:
    first(events, "step.started")["world"] = "0" * 64


def lose_a_write(events: list[Any]) -> None:
    step = next(e["step"] for e in events if e.get("effect") == "write")
    events[:] = [event for event in events if event.get("step") != step]


def change_occurrence(events: list[Any]) -> None:
    first(events, "step.started")["occurrence"] = [2**63, -1]


def change_result(events: list[Any]) -> None:
    first(events, "step.finished")["outcome"]["value"] = "another"


def finish_twice(events: list[Any]) -> None:
    events.insert(3, {**first(events, "step.finished")})


def finish_a_stranger(events: list[Any]) -> None:
    first(events, "step.finished")["step"] = 99


def begin_twice(events: list[Any]) -> None:
    events.insert(2, {**first(events, "step.started")})


def start_twice(events: list[Any]) -> None:
    events.insert(1, {**events[0]})


def be_another_run(events: list[Any]) -> None:
    events[0]["run"] = "01890a5d-ac96-774b-bcce-b302099a8057"


def go_on_after_the_end(events: list[Any]) -> None:
    events.append({**first(events, "step.blocked"), "step": 100})


def break_the_schema(events: list[Any]) -> None:
    first(events, "step.started")["effect"] = "magic"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (change_arguments, "key"),
        (change_key, "key"),
        (change_world, "fingerprint"),
        (change_world, "world"),
        (lose_a_write, "world"),
        (change_occurrence, "fingerprint"),
        (change_result, "digest"),
        (finish_twice, "order"),
        (finish_a_stranger, "order"),
        (begin_twice, "order"),
        (start_twice, "order"),
        (be_another_run, "order"),
        (go_on_after_the_end, "order"),
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


def test_a_forged_blob_that_is_no_json(cli: Cli, store: Path, tools: Any, edit: Any) -> None:
    with Session("job", store=store) as session:
        tools.put("a", "b")
    digest = sha256(b"not json").hexdigest()
    (store / "blobs" / digest[:2]).mkdir(parents=True)
    (store / "blobs" / digest[:2] / digest).write_bytes(b"not json")
    value = {"$rollcage": "blob", "value": None, "sha256": digest, "size": 8}

    def change(events: list[Any]) -> None:
        first(events, "step.started")["args"]["text"] = value

    edit(session.run_id, forge(change))
    codes = [f["code"] for f in cli("verify", session.run_id, "--json").data["findings"]]
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
    assert piped.stdout.startswith(b"whole: 5202 lines")
    assert piped.stderr == b""


def count(index: int) -> int:
    return index


def test_no_byte_of_a_finished_run_can_change_or_go(store: Path, tools: Any) -> None:
    with Session("job", store=store) as session:
        tools.put("a", "b")
    reader, run = JsonlStore(store), session.run_id
    path = store / "logs" / f"{run}.jsonl"
    whole = path.read_bytes()
    assert verify_trace(reader.read(run), reader).ok
    for at in range(len(whole)):
        for changed in (
            whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            whole[:at] + whole[at + 1 :],
            whole[:at],
        ):
            path.write_bytes(changed)
            assert not verify_trace(reader.read(run), reader).ok, (at, changed)
