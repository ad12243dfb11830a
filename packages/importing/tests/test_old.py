"""`rollcage import` of the runs of an earlier version: a whole folder of them."""

import fcntl
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from rollcage import Session, list_runs, open_store, tool
from rollcage.errors import RunNotFound, StoreError, StoreInvalid
from rollcage_cli.app import main
from rollcage_import import import_old_runs

Recorded = Callable[[str | int], tuple[Path, Any]]

ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@tool(name="oldpkg.send", effect="write")
def send(to: str) -> str:
    ran.append(to)
    return f"sent to {to}"


@tool(name="oldpkg.log_in", effect="read", secret=["pin"])
def log_in(user: str, pin: SecretStr) -> str:
    ran.append(user)
    return f"{user} is in"


@pytest.fixture
def old(recorded: Recorded) -> Path:
    """Two attempts at a job that died, one with a secret that ended, and a look at that one."""
    return recorded("mail")[0]


def test_every_run_of_a_folder_becomes_a_log(old: Path, tmp_path: Path) -> None:
    found = import_old_runs(old, store=tmp_path / "new")
    assert [(each.name, each.generations, each.refused) for each in found] == [
        ("mail", 2, ""), ("secret", 1, ""),
    ]  # fmt: skip
    with Session("mail", store=tmp_path / "new") as session:
        send("ann")
        send("bob")
        send("eve")
    assert (session.run_id, ran) == (found[0].run, ["eve"])
    with Session("secret", store=tmp_path / "new", replay="continue") as session:
        log_in("ann", SecretStr("hunter2-hunter2"))
    assert session.stats.hits == 1, "a secret is known by the HMAC that it had"
    again = import_old_runs(old, store=tmp_path / "new")
    assert [(each.there, each.run) for each in again] == [(True, "")] * 2


def test_a_store_may_be_both_old_and_new(old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / "runs").iterdir()}
    mail, _ = import_old_runs(old, store=old)
    assert {path: path.read_bytes() for path in (old / "runs").iterdir()} == before
    with Session("mail", store=old) as session:
        send("ann")
        send("bob")
    assert (session.run_id, ran) == (mail.run, [])


def test_one_run_alone_is_imported_if_there(old: Path, tmp_path: Path) -> None:
    first = min(path.stem for path in (old / "runs").glob("*.jsonl"))
    (one,) = import_old_runs(old, store=tmp_path / "new", run=first)
    assert (one.old, one.generations) == (first, 1)
    with pytest.raises(RunNotFound, match="no run nothing"):
        import_old_runs(old, store=tmp_path / "new", run="nothing")
    with pytest.raises(StoreError, match="no folder `runs`"):
        import_old_runs(tmp_path / "new", store=tmp_path / "new")


def test_a_store_with_another_key_is_refused(old: Path, tmp_path: Path) -> None:
    with Session("own", store=tmp_path / "new"):
        log_in("eve", SecretStr("other-other"))
    with pytest.raises(StoreInvalid, match="a key of its own"):
        import_old_runs(old, store=tmp_path / "new")


def test_a_run_whose_source_is_gone_is_named(old: Path, tmp_path: Path) -> None:
    gone = min((old / "runs").glob("*.jsonl"))
    gone.unlink()
    found = import_old_runs(old, store=tmp_path / "new")
    assert [(each.name, gone.stem in each.refused) for each in found] == [
        ("mail", True), ("secret", False),
    ]  # fmt: skip


def test_a_run_that_is_being_written_is_left(old: Path, tmp_path: Path) -> None:
    newest = sorted((old / "runs").glob("*.jsonl"))[1]
    with newest.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        mail, secret = import_old_runs(old, store=tmp_path / "new")
    assert "is being written by a session" in mail.refused
    assert not mail.there
    assert secret.run


# --- sessions inside of others -------------------------------------------------------------------


def test_an_inner_session_is_never_torn_off(recorded: Recorded, tmp_path: Path) -> None:
    """Its steps would not be found where the outer run is resumed, and its writes be made again."""
    folder, found = recorded("nested")
    known = found["known"]
    refused = {each.old: each for each in import_old_runs(folder, store=tmp_path / "new")}
    for run in (known["outer"], known["inner"]):
        assert not refused[run].run
        for named in (known["outer"], known["inner"], "(trip)", "(inside)", "Finish or undo run"):
            assert named in refused[run].refused
    assert [each.name for each in list_runs(tmp_path / "new")] == ["mail"]
    with Session("trip", store=tmp_path / "new"):
        send("before")
        with Session("inside", store=tmp_path / "new"):
            send("ann")
    assert ran == ["before", "ann"], "nothing was taken over, so all of it is done, or none"


def test_an_inner_session_of_an_earlier_attempt_counts(recorded: Recorded, tmp_path: Path) -> None:
    folder, found = recorded("deep")
    refused = import_old_runs(folder, store=tmp_path / "new")
    assert {each.old for each in refused} == {
        found["known"][name] for name in ("second", "inner", "innermost")
    }
    assert all("is of a session inside of run" in each.refused for each in refused)
    assert list_runs(tmp_path / "new") == []


def test_a_look_inside_of_a_session_is_nothing(recorded: Recorded, tmp_path: Path) -> None:
    folder, _ = recorded("looked")
    assert [each.refused for each in import_old_runs(folder, store=tmp_path / "new")] == ["", ""]
    with Session("trip", store=tmp_path / "new") as session:
        send("bob")
    assert (session.stats.hits, ran) == (1, [])


# --- hostile folders -----------------------------------------------------------------------------


DEEP = b"[" * 900 + b"]" * 900


def mail_run(old: Path) -> Path:
    return min((old / "runs").glob("*.jsonl"))


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the events of a run, and chain them anew, as somebody may who knows how."""
    events = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    change(events)
    head, lines = b"\0" * 32, b""
    for event in events:
        event.pop("hash", None)
        line = orjson.dumps(event).replace(b'"DEEP"', DEEP)
        head = sha256(head + line).digest()
        lines += b'%b,"hash":"%b"}\n' % (line[:-1], head.hex().encode())
    path.write_bytes(lines)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (lambda data: data.replace(b'"ann"', b'"eve"'), "line 2: its hash does not follow"),
        (lambda data: data[data.index(b"\n") + 1 :], "line 1: its hash does not follow"),
        (lambda _: b"", "line 1: the run has no line"),
        (lambda _: b"\0" * 5000 + b"\n", "line 1: its hash does not follow"),
        (lambda data: b"\n" + data, "line 1: its hash does not follow"),
    ],
)
def test_a_damaged_run_is_named(
    old: Path, tmp_path: Path, cut: Callable[[bytes], bytes], said: str
) -> None:
    path = mail_run(old)
    path.write_bytes(cut(path.read_bytes()))
    (found,) = import_old_runs(old, store=tmp_path / "new", run=path.stem)
    assert not found.run
    assert str(path) in found.refused
    assert said in found.refused


def test_a_torn_last_line_never_counted(old: Path, tmp_path: Path) -> None:
    path = mail_run(old)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    (found,) = import_old_runs(old, store=tmp_path / "new", run=path.stem)
    assert found.run


@pytest.mark.parametrize(
    ("line", "fields", "said"),
    [
        (0, {"format": "rollcage/3"}, "in the format rollcage/1"),
        (0, {"run": "../../etc"}, "does not begin run"),
        (0, {"mode": "other"}, "mode is none of"),
        (0, {"chain": 7}, "chain is missing, or no str"),
        (0, {"source": ["x"]}, "source is no str"),
        (1, {"event": "run.started"}, "begins with its one event"),
        (1, {"event": "step.guessed"}, "there is no event 'step.guessed'"),
        (1, {"event": []}, "it belongs to no event"),
        (1, {"step": True}, "step is missing, or no int"),
        (1, {"slot": -1}, "slot counts from 0"),
        (1, {"turn": 2**60}, "turn counts from 0"),
        (1, {"effect": "none"}, "effect is none of"),
        (1, {"key": "zz"}, "key is no digest"),
        (1, {"args": []}, "args is missing, or no dict"),
        (1, {"args": {"to": "DEEP"}}, "does not fit what is before it"),
        (1, {"branch": "nowhere"}, "does not fit what is before it"),
        (1, {"args": {"to": {"$rollcage": "blob", "sha256": "../../key"}}}, "is not the name of"),
        (1, {"args": {"to": {"$rollcage": "blob", "sha256": "a" * 64}}}, "is missing"),
        (2, {"step": 99}, "does not fit what is before it"),
        (2, {"outcome": {"status": "great"}}, "the status of an outcome is none of"),
        (2, {"outcome": {"status": "error"}}, "is an error, but has no error"),
        (2, {"time": "now"}, "time is missing, or no int"),
    ],
)
def test_a_forged_line_is_refused(
    old: Path, tmp_path: Path, line: int, fields: dict[str, Any], said: str
) -> None:
    path = mail_run(old)
    rewrite(path, lambda events: events[line].update(fields))
    (found,) = import_old_runs(old, store=tmp_path / "new", run=path.stem)
    assert said in found.refused
    assert list_runs(tmp_path / "new") == []


def test_a_run_that_goes_on_from_itself_ends(old: Path, tmp_path: Path) -> None:
    first, second = sorted((old / "runs").glob("*.jsonl"))[:2]
    rewrite(first, lambda events: events[0].update(source=second.stem, mode="resume"))
    (found,) = import_old_runs(old, store=tmp_path / "new", run=second.stem)
    assert "goes on from itself" in found.refused


def test_what_is_no_file_is_not_waited_for(old: Path, tmp_path: Path) -> None:
    path = mail_run(old)
    path.unlink()
    os.mkfifo(path)
    (found,) = import_old_runs(old, store=tmp_path / "new", run=path.stem)
    assert "is no file of less than" in found.refused


def test_a_blob_is_what_its_name_says(recorded: Recorded, tmp_path: Path) -> None:
    folder, found = recorded("large")
    (blob,) = {path for path in (folder / "blobs").rglob("*") if path.is_file()}
    blob.write_bytes(b'"forged"')
    (one,) = import_old_runs(folder, store=tmp_path / "new", run=found["known"]["run"])
    assert "the value does not match its name" in one.refused
    assert not open_store(tmp_path / "new").runs()


def test_the_command_takes_a_folder(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--store", str(tmp_path / "new")]
    assert main(["import", str(old), *where]) == 0
    said = capsys.readouterr().out
    assert "mail: 2 runs of the old format" in said
    assert "2 logs imported from rollcage/1" in said
    assert main(["import", str(old), *where, "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert [each["there"] for each in told["runs"]] == [True, True]


def test_the_command_says_what_is_refused(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, found = recorded("nested")
    assert main(["import", str(folder), "--store", str(tmp_path / "new")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"is of a session inside of run {found['known']['outer']}" in said
    assert "1 log imported from rollcage/1" in said
