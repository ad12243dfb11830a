"""What was asked for and never became a step; and what was recorded and nobody asked for."""

import asyncio
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from rollcage import Session, leave_behind, tool
from rollcage.contract.contract import Contract
from rollcage.errors import ArgumentsInvalid, Halt, ReplayMiss, SessionError, StepNotFound
from rollcage.trace.chain import parse
from rollcage.trace.store import open_store


class Login(BaseModel):
    user: str
    password: SecretStr


@tool(effect="write", version="2", name="asked.put")
def put(what: str, often: int = 1) -> str:
    return what * often


@tool(effect="read", secret=["pin"], name="asked.unlock")
def unlock(door: int, pin: str) -> str:
    return "open"


@tool(effect="read", name="asked.enter")
def enter(login: Login, door: int) -> str:
    return "in"


@tool(effect="pure", name="asked.double")
def double(n: int) -> int:
    return 2 * n


@tool(effect="scope", name="asked.outer")
def outer(what: str) -> str:
    return put(what)


def refused(folder: Path, session: Session) -> list[dict[str, Any]]:
    lines = parse(open_store(folder).read(session.run_id), "the run")
    return [line for line in lines if line["event"] == "refused"]


def test_arguments_that_do_not_pass(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        put("a")
        with pytest.raises(ArgumentsInvalid):
            put(what=3, often="three")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid):
            session.call(put, what="a", why=None)
        put("b")
        assert (session.stats.refused, session.stats.blocked, session.stats.calls) == (2, 0, 2)
    wrong, unknown = refused(tmp_path, session)
    assert wrong["args"] == {"what": 3, "often": "three"}
    assert (wrong["name"], wrong["version"]) == ("asked.put", "2")
    assert wrong["verdict"]["code"] == "arguments_invalid"
    assert "often: Input should be a valid integer" in wrong["verdict"]["reason"]
    assert "unknown argument 'why'" in unknown["verdict"]["reason"]


async def test_async_calls_and_streams_too(tmp_path: Path) -> None:
    contract = Contract.of(put)
    async with Session("job", store=tmp_path) as session:
        with pytest.raises(ArgumentsInvalid):
            await session.acall(put, what=[])
        with pytest.raises(ArgumentsInvalid):
            await anext(session.astream(contract, {}, put))
    assert [each["args"] for each in refused(tmp_path, session)] == [{"what": []}, {}]


def test_a_tool_that_does_not_exist(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session, session.turn() as turn:
        put("a")
        with session.place(turn=turn, slot=2, agent="Zoë", call_id="c1"):
            session.refused("pu\udc80t", {"what": b"a", "pin": "one-2-3", "$rollcage": 1})
    (line,) = refused(tmp_path, session)
    assert [line[name] for name in ("turn", "slot", "agent", "call_id")] == [1, 2, "Zoë", "c1"]
    assert line["verdict"] == {
        "decision": "deny",
        "code": "tool_missing",
        "reason": "there is no tool called 'pu?t'",
        "rule": "",
    }
    data = b"".join(open_store(tmp_path).read(session.run_id))
    assert b"one-2-3" not in data, "a tool here calls it a secret"


def test_a_contract_says_what_is_wrong(tmp_path: Path) -> None:
    contract = Contract.of(put, effect="write")
    with Session("job", store=tmp_path) as session:
        session.refused(contract, {"what": 1}, reason="it is not wanted")
        session.refused(contract, {"what": "a"}, reason="it is not wanted", call_id="c2")
        session.refused(contract, {"what": "a"}, reason="at night", code="closed")
    first, second, third = (each["verdict"] for each in refused(tmp_path, session))
    assert first["code"] == "arguments_invalid"
    assert "valid string" in first["reason"]
    assert (second["code"], second["reason"]) == ("refused", "it is not wanted")
    assert (third["code"], third["reason"]) == ("closed", "at night")


def test_secrets_stay_off_the_disk(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with pytest.raises(ArgumentsInvalid):
            unlock(door="x", pin="hunter2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid):
            enter(login={"user": "ann", "password": "hunter2"}, door="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert b"hunter2" not in b"".join(open_store(tmp_path).read(session.run_id))
    first, second = refused(tmp_path, session)
    assert first["args"]["pin"]["$rollcage"] == "secret"
    assert second["args"]["login"]["$rollcage"] == "secret"


def test_nothing_is_recorded_after_a_halt(tmp_path: Path) -> None:
    with pytest.raises(Halt, match="enough"), Session("job", store=tmp_path) as session:
        session.halt(Halt("enough"))
        session.refused("nothing", {})
    assert refused(tmp_path, session) == []


@pytest.mark.parametrize("replay", ["resume", "offline"])
def test_a_replay_neither_needs_nor_counts_it(tmp_path: Path, replay: Any) -> None:
    def run(*, guesses: bool, **how: Any) -> Session:
        with Session("job", store=tmp_path, **how) as session:
            put("a")
            if guesses:
                with pytest.raises(ArgumentsInvalid):
                    put(what=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
            put("b")
        return session

    first = run(guesses=True)
    for guesses in (False, True):
        again = run(guesses=guesses, run=first.run_id, replay=replay)
        assert (again.stats.hits, again.stats.misses) == (2, 0)


def test_what_nobody_asked_for_is_listed(tmp_path: Path) -> None:
    def model(text: str) -> str:
        return text

    def run(*, whole: bool, **how: Any) -> tuple[str, tuple[int, ...]]:
        with Session("job", store=tmp_path, **how) as session:
            contract = Contract.of(model)
            session.run_call(contract, {"text": "a"}, model, kind="model")
            if whole:
                session.run_call(contract, {"text": "b"}, model, kind="model")
            put("a")
            double(1)
            with session.branch("side"):
                if whole:
                    outer("b")
            if whole:
                unlock(1, "1")
            return session.run_id, session.unasked()

    assert run(whole=True)[1] == ()
    name, left = run(whole=False, replay="offline")
    lines = parse(open_store(tmp_path).read(name), "the run")
    names = {line["step"]: line["name"] for line in lines if line["event"] == "step"}
    assert [names[n] for n in left] == ["model", "asked.outer", "asked.unlock"]
    assert run(whole=True, replay="offline")[1] == ()


def test_without_a_name_it_is_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "nightly.py")
    Path(main.__file__).write_text("", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "__main__", main)
    with Session(store=tmp_path / "store") as session:
        put("a")
    assert session.name == "nightly"
    assert "it is called 'nightly', after its script" in caplog.text
    main.__file__ = None
    with pytest.raises(SessionError, match="no script is running"):
        Session(store=tmp_path)


def test_accents_make_no_other_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="late"), Session("caf\u00e9", store=tmp_path) as first:
        put("a")
        raise ValueError("late")
    with Session("cafe\u0301", store=tmp_path) as second:
        put("a")
    assert (second.run_id, second.stats.hits) == (first.run_id, 1)


def test_a_misspelt_divergence_is_refused() -> None:
    wrong: Any = "stop"
    with pytest.raises(SessionError, match="on_divergence='stop' is not one of halt, undo, warn"):
        Session("job", on_divergence=wrong)


def test_an_input_with_a_secret_is_no_plain_digest(tmp_path: Path) -> None:
    import hashlib

    from rollcage.fingerprint.identity import jcs
    from rollcage.values.codec import encode

    store = open_store(tmp_path)
    run = ""
    for _ in range(2):
        session = Session("job", store=store, input=SecretStr("hunter2"))
        with pytest.raises(ValueError, match="late"), session:
            run = session.run_id
            raise ValueError("late")
    (key,) = store.keys("names")
    plain = hashlib.sha256(jcs(encode(SecretStr("hunter2"), str, path="input"))).hexdigest()
    assert plain not in key
    assert len([x for x in store.read(run) if b'"event":"attempt"' in x]) == 2


def test_a_block_is_not_listed_but_the_calls_in_it_are(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session, session.branch("side"):
        put("a")
    with Session("job", store=tmp_path, replay="offline") as offline:
        assert offline.unasked() == (2,)


def test_async_sessions_list_the_same(tmp_path: Path) -> None:
    async def run(how: Any) -> tuple[int, ...]:
        async with Session("job", store=tmp_path, replay=how) as session:
            if how == "off":
                await session.acall(put, what="a")
            return session.unasked()

    assert asyncio.run(run("off")) == ()
    assert asyncio.run(run("offline")) == (1,)


def test_what_is_left_behind_answers_no_more(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as first:
        put("a")
        put("b")
        unlock(1, "1")
    with pytest.raises(StepNotFound):
        leave_behind(tmp_path, first.run_id, [9])
    leave_behind(tmp_path, first.run_id, [2, 3])
    with Session("job", store=tmp_path, replay="offline") as looked:
        put("a")
        assert looked.unasked() == ()
    with pytest.raises(ReplayMiss), Session("job", store=tmp_path, replay="offline"):
        put("a")
        put("b")
    with Session("job", store=tmp_path, replay="continue") as again:
        put("a")
        put("b")
    assert (again.stats.hits, again.stats.misses) == (1, 1)
