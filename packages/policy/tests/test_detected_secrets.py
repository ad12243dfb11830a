"""`DetectedSecrets()`: credentials that nobody declared never reach the disk either."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from rollcage import (
    Approval,
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    CaptureFailed,
    Compensation,
    Guard,
    NotReplayable,
    ReplayMiss,
    Session,
    Verdict,
    compensate,
    tool,
    undo_run,
)
from rollcage.errors import DetectorMissing
from rollcage_policy import DetectedSecrets, Policy, credentials
from rollcage_policy.detecting import Detecting

AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp" + "_" + "a1B2" * 9
PASSWORD = "hunter2-correct-horse"

ran: list[str] = []
files: dict[str, str] = {}


class Note(BaseModel):
    title: str
    body: str


@pytest.fixture(autouse=True)
def afresh() -> None:
    ran.clear()
    files.clear()


@tool
def put(text: Any) -> str:
    ran.append("put")
    return "done"


@tool(effect="read")
def look(text: str) -> str:
    ran.append("look")
    return f"it says {GITHUB}"


@tool
def make(count: int) -> Note:
    ran.append("make")
    return Note(title="key", body=f"made {AWS}")


@tool(secret="password")
def login(password: str) -> None:
    ran.append("login")
    raise ValueError(f"{password!r} is wrong, and so is {AWS}")


def restored(args: Any, before: Any) -> list[Compensation]:
    return [compensate(write_note, name=args["name"], text=before["text"])]


@tool(undo=restored, observe=lambda args: {"text": files.get(args["name"], "")})
def write_note(name: str, text: str) -> None:
    ran.append("write_note")
    files[name] = text


@tool(effect="write")
def drop_note(name: str) -> str:
    files.pop(name, None)
    return f"removed, by {AWS}"


@tool(undo=lambda args: [compensate(drop_note, name=args["name"])])
def make_note(name: str) -> None:
    files[name] = ""


@pytest.fixture
def open_session(tmp_path: Path) -> Callable[..., Session]:
    def open_session(name: str = "job", **options: Any) -> Session:
        return Session(name, **{"store": tmp_path, "stages": [DetectedSecrets()], **options})

    return open_session


@pytest.fixture
def written(tmp_path: Path) -> Callable[[], str]:
    """Everything that the store holds."""

    def written() -> str:
        return "\n".join(
            path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()
        )

    return written


def test_a_credential_in_an_input(open_session: Any, written: Any) -> None:
    """What the user has said names the job, and a resume finds it."""
    told = f"push with {GITHUB}"
    with open_session(input=told) as session:
        put("a")
    assert GITHUB not in written()
    for how in ({"replay": "continue"}, {"run": session.run_id}):
        with open_session(input=told, **how) as again:
            put("a")
        assert again.run_id == session.run_id
        assert GITHUB not in written()
    assert ran == ["put"]


def test_a_policy_still_sees_that_there_was_one(open_session: Any) -> None:
    policy = Policy.parse('version = 1\ndefault = "allow"\n[[presets]]\nuse = "secrets"\n')
    for stages in ([], [DetectedSecrets()]):
        with open_session(gate=[policy], stages=stages):
            with pytest.raises(Blocked) as refused:
                put(text=f"the key is {AWS}")
            assert refused.value.rule.startswith("secrets/")
            put(text="no key at all")
    assert ran == ["put", "put"]


def test_a_credential_in_an_argument_is_sealed_in_its_place(
    open_session: Any, written: Any
) -> None:
    with open_session() as session:
        put(f"export KEY={AWS} # mine")
        put({"deep": [("a", {AWS: b"token " + GITHUB.encode()})]})
        put({"password": "short1", 1: {"api_key": "x"}})
    text = written()
    assert AWS not in text
    assert GITHUB not in text
    assert "short1" not in text
    assert '"text":"export KEY=<secret ' in text
    assert session.stats.calls == 3


def test_the_body_gets_what_it_was_given(open_session: Any) -> None:
    given: list[str] = []

    @tool
    def take(text: str) -> None:
        given.append(text)

    with open_session():
        take(f"key {AWS}")
    assert given == [f"key {AWS}"]


def test_the_same_call_still_matches_and_another_does_not(open_session: Any) -> None:
    with open_session():
        put(f"key {AWS}")
    with open_session(replay="offline") as session:
        assert put(f"key {AWS}") == "done"
    assert session.stats.hits == 1
    with pytest.raises(ReplayMiss, match="no recorded step"), open_session(replay="offline"):
        put(f"key {AWS[:-1]}F")
    assert ran == ["put"]


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_recorded_write_whose_result_held_one_halts(open_session: Any, written: Any) -> None:
    with open_session() as session:
        assert AWS in make(1).body
    assert AWS not in written()
    halted = r"a credential \(AWS Access Key\) is never recorded"
    with pytest.raises(NotReplayable, match=halted), open_session(replay="resume") as session:
        make(1)
    assert ran == ["make"]
    assert session.stats.hits == 0


def test_a_read_whose_result_held_one_runs_again(open_session: Any, written: Any) -> None:
    for replay in ("off", "resume"):
        with open_session(replay=replay):
            assert GITHUB in look("x")
            put("behind it")
    assert ran == ["look", "put", "look"]
    assert GITHUB not in written()


def test_an_error_replays_with_what_stands_for_it(open_session: Any, written: Any) -> None:
    said: list[str] = []
    for replay in ("off", "resume"):
        with open_session(replay=replay):
            with pytest.raises(ValueError, match="is wrong") as raised:
                login(PASSWORD)
            said.append(str(raised.value))
            put(f"it failed: {raised.value}")  # the same call, by the same key
    assert PASSWORD in said[0]
    assert PASSWORD not in said[1]
    assert "<secret " in said[1]
    assert ran == ["login", "put"]
    assert PASSWORD not in written()
    assert AWS not in written()


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_what_was_declared_is_found_where_it_is_quoted(open_session: Any, written: Any) -> None:
    @tool
    def typed(password: SecretStr) -> str:
        return f"https://ann:x@host/?p={password.get_secret_value().replace('-', '%2D')}"

    @tool
    def echo(text: str) -> str:
        return text

    with open_session():
        typed(SecretStr(PASSWORD))
        echo(f"I used {PASSWORD}")
    assert PASSWORD not in written()


def test_a_rule_that_quotes_one_is_not_taken_at_its_word(open_session: Any, written: Any) -> None:
    def no_keys(view: Any) -> Verdict:
        return Verdict.deny(f"no keys: {view.args['text']}")

    with open_session(gate=[no_keys]), pytest.raises(Blocked, match="no keys: <secret ") as blocked:
        put(AWS)
    assert AWS not in str(blocked.value)
    assert AWS not in written()


def test_a_screen_that_quotes_one_neither(open_session: Any, written: Any) -> None:
    class Screens(Guard):
        def screen(self, contract: Any, body: Any, kind: str) -> Verdict:
            return Verdict("deny", "no", remedy=f"use {AWS}")

    with open_session(gate=[Screens()]), pytest.raises(Blocked, match="use <secret "):
        put("text")
    assert AWS not in written()


def test_an_approval_is_asked_for_without_it(open_session: Any, written: Any) -> None:
    def asks(view: Any) -> Verdict:
        return Verdict.ask(f"send {view.args['text']}?")

    said: list[Any] = []

    def approver(request: Any) -> Approval:
        said.append(request.verdict.reason)
        return Approval(True, by="ann")

    with open_session(gate=[asks], approver=approver):
        put(AWS)
    with pytest.raises(ApprovalRequired) as halt, open_session(gate=[asks], replay="off"):
        put(AWS)
    assert "<secret " in said[0]
    assert AWS not in said[0]
    assert AWS not in str(halt.value)
    assert ran == ["put"]
    assert AWS not in written()


def test_a_reason_that_nobody_can_look_through_denies(open_session: Any, monkeypatch: Any) -> None:
    def asks(_: Any) -> Verdict:
        return Verdict.ask(f"the key is {AWS}")

    hide = Detecting.hide

    def broken(seal: Detecting, encoded: Any, *names: Any) -> Any:
        if isinstance(encoded, str) and AWS in encoded:
            raise ZeroDivisionError(AWS)
        return hide(seal, encoded, *names)

    with open_session(gate=[asks], approver=lambda _: Approval(True, by="ann")):
        monkeypatch.setattr(Detecting, "hide", broken)
        with pytest.raises(Blocked) as blocked:
            put("text")
        monkeypatch.undo()
    assert blocked.value.verdict_code == "gate_error"
    assert AWS not in str(blocked.value)
    assert ran == []


def test_the_error_that_ends_a_run_holds_none(open_session: Any, written: Any) -> None:
    with pytest.raises(RuntimeError), open_session():
        raise RuntimeError(f"token {GITHUB}")
    assert GITHUB not in written()


def test_a_large_value_is_looked_into_before_it_becomes_a_blob(
    open_session: Any, written: Any
) -> None:
    with open_session():
        put("x " * 100_000 + AWS)
    assert AWS not in written()


def test_a_key_is_no_unkeyed_hash_of_one(open_session: Any, tmp_path: Path) -> None:
    keys: set[str] = set()
    for folder in ("one", "two"):  # each store has a key of its own
        with open_session(store=tmp_path / folder):
            put(f"pin={AWS}")
        (trace,) = (tmp_path / folder / "logs").glob("*.jsonl")
        keys.add(trace.read_text().split('"key":"')[1][:64])
    assert len(keys) == 2


def test_what_an_undo_would_have_to_write_back_is_refused(open_session: Any, written: Any) -> None:
    files["env"] = f"KEY={AWS}"
    refused = "is a secret, and a plan is kept in the trace"
    with open_session(), pytest.raises(CaptureFailed, match=refused):
        write_note("env", "KEY=")
    assert files == {"env": f"KEY={AWS}"}
    assert AWS not in written()


def test_an_undo_from_elsewhere_looks_for_them_too(
    open_session: Any, written: Any, tmp_path: Path
) -> None:
    with open_session() as session:
        make_note("a")
    undo_run(tmp_path, session.run_id, stages=[DetectedSecrets()])
    assert files == {}
    assert AWS not in written()


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
async def test_async_tools_too(open_session: Any, written: Any) -> None:
    @tool
    async def fetch(url: str) -> str:
        return f"token {GITHUB}"

    async with open_session() as session:
        assert GITHUB in await session.acall(fetch, url=f"https://h/?api_key={AWS}")
    assert AWS not in written()
    assert GITHUB not in written()


def test_by_default_only_what_is_declared_is_sealed(open_session: Any, written: Any) -> None:
    with open_session(stages=[]):
        put(AWS)
    assert AWS in written()


def test_without_the_library_no_session_is_made(
    open_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.keyword", None)
    credentials._loaded.cache_clear()
    try:
        with pytest.raises(DetectorMissing), open_session():
            pytest.fail("it was entered")
    finally:
        credentials._loaded.cache_clear()


def test_a_call_that_was_refused_tells_none(open_session: Any, written: Any) -> None:
    with open_session() as session:
        with pytest.raises(ArgumentsInvalid):
            session.call(make, count=f"key {AWS}")
        session.refused("no_such_tool", {"text": [AWS], "password": "hunter2"})
    assert AWS not in written()
    assert "hunter2" not in written()


def test_the_name_of_a_branch_may_look_like_one(open_session: Any, written: Any) -> None:
    with open_session() as session:
        put(f"the key is {AWS}, see")
        with session.branch(AWS):
            pass
    assert "the key is <secret " in written()
    assert f"is {AWS}" not in written()
