"""A declared secret never reaches the disk, wherever an error, a result or a reason quotes it."""

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    CaptureFailed,
    Contract,
    NotReplayable,
    SessionError,
    Verdict,
    compensate,
    tool,
)
from rollcage.adapter import plain_body
from rollcage.gate import QueueApprover
from rollcage.gate.quotes import Quotes
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage_governance import Registry

# A write whose result held a secret says that it can't come back: not what these tests ask.
pytestmark = pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")

SECRET = 's3cr3t/"Ünkle" &co'
PIN = 471100

ran: list[str] = []


@pytest.fixture(autouse=True)
def afresh() -> None:
    ran.clear()


@pytest.fixture
def clean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[[], None]:
    """Holds everything that was written against all ways to write the secret."""

    def clean() -> None:
        held = b"".join(
            each.read_bytes()
            for each in tmp_path.rglob("*")
            if each.is_file() and each.name != "key"
        )
        written = held.decode() + caplog.text
        assert held
        for way in (
            SECRET,
            json.dumps(SECRET)[1:-1],
            json.dumps(SECRET, ensure_ascii=False)[1:-1],
            json.dumps(json.dumps(SECRET, ensure_ascii=False))[2:-2],
            quote(SECRET, safe=""),
            base64.b64encode(SECRET.encode()).decode(),
            str(PIN),
        ):
            assert way not in written

    return clean


@tool(secret=["password", "pin"])
def login(password: str, pin: int = 0) -> str:
    ran.append("login")
    return f"welcome; you said {password!r}, {pin}, {quote(password, safe='')}"


@tool(effect="read", secret=["password"])
def look(password: str) -> dict[str, Any]:
    ran.append("look")
    return {"asked": [{"with": password}], password: 1, "bytes": password.encode()}


@tool(secret=["password", "pin"])
def failing(password: str, pin: int = PIN) -> None:
    ran.append("failing")
    error = ValueError(f"{password!r} and {pin} are wrong", {"password": password})
    error.add_note(f"it was {password}")
    raise error


@tool
def typed(password: pydantic.SecretStr) -> str:
    return f"Basic {base64.b64encode(password.get_secret_value().encode()).decode()}"


@tool
def post(body: Any) -> str:
    ran.append("post")
    return "posted"


@tool(secret="password")
def nested(password: str) -> None:
    post({"deep": [f"password={password}", password]})


def test_in_a_result(tmp_path: Path, clean: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Session("job", store=tmp_path) as session:
        assert repr(SECRET) in login(SECRET, PIN)
        typed(pydantic.SecretStr(SECRET))
        look(SECRET)
        asyncio.run(again(session))
    clean()


async def again(session: Session) -> None:
    assert SECRET in (await session.acall(look, password=SECRET))["asked"][0]["with"]


def test_a_performed_write_whose_result_held_one_is_marked_and_halts(
    tmp_path: Path, clean: Any, events: Any
) -> None:
    store = tmp_path / "store"
    with pytest.raises(BrokenPipeError), Session("job", store=store) as session:
        login(SECRET)
        raise BrokenPipeError
    outcome = next(e["outcome"] for e in events(session.run_id) if e["event"] == "step.finished")
    assert outcome["lossy"] == "$: a declared secret is never recorded"
    with (
        pytest.raises(NotReplayable, match="a declared secret is never recorded"),
        Session("job", store=store),
    ):
        login(SECRET)
    assert ran == ["login"]
    clean()


def test_a_read_whose_result_held_one_runs_again(tmp_path: Path, clean: Any) -> None:
    for replay in ("off", "resume"):
        with Session("job", store=tmp_path, replay=replay):
            assert SECRET in look(SECRET)
            post("behind it")
    assert ran == ["look", "post", "look"]
    clean()


def test_in_an_error(tmp_path: Path, clean: Any) -> None:
    said: list[str] = []
    for replay in ("off", "resume"):
        with Session("job", store=tmp_path, replay=replay):
            with pytest.raises(ValueError, match="wrong") as raised:
                failing(SECRET)
            said.append(str(raised.value))
            post(f"it failed: {raised.value.args[0]}")  # the same call, by the same key
    assert "<secret " in said[1]
    assert ran == ["failing", "post"]
    clean()


def test_in_the_error_that_ends_the_run(tmp_path: Path, clean: Any) -> None:
    with pytest.raises(RuntimeError), Session("job", store=tmp_path):
        with contextlib.suppress(ValueError):
            failing(SECRET)
        raise RuntimeError(f"could not use {SECRET}")
    clean()


def test_in_the_arguments_of_nested_and_of_later_calls(tmp_path: Path, clean: Any) -> None:
    modes: dict[Any, int] = {"off": 3, "offline": 0}
    for replay, misses in modes.items():
        with Session("job", store=tmp_path, replay=replay) as session:
            nested(SECRET)
            post(SECRET)
        assert session.stats.misses == misses
    assert ran == ["post", "post"]
    clean()


def test_in_what_a_rule_says(tmp_path: Path, clean: Any) -> None:
    def no(view: Any) -> Verdict:
        return Verdict.deny(f"not with {view.args['password']}")

    with Session("job", store=tmp_path, rules=[no]), pytest.raises(Blocked, match="not with <sec"):
        login(SECRET)
    clean()


def test_in_what_somebody_is_asked_and_says(tmp_path: Path, clean: Any) -> None:
    def asking(view: Any) -> Verdict:
        return Verdict.ask(f"really with {view.args['password']}?")

    with (
        pytest.raises(ApprovalRequired),
        Session("job", store=tmp_path, rules=[asking], approver=QueueApprover(tmp_path)),
    ):
        login(SECRET)
    with Session(
        "job",
        store=tmp_path,
        replay="off",
        rules=[asking],
        approver=lambda _: Approval(True, "ann", f"{SECRET} is fine"),
    ):
        login(SECRET)
    clean()


def test_in_a_large_value(tmp_path: Path, clean: Any) -> None:
    with Session("job", store=tmp_path):
        login(SECRET)
        post("x " * 100_000 + SECRET)
    clean()


def test_what_an_undo_would_have_to_write_is_refused(tmp_path: Path, clean: Any) -> None:
    @tool(secret="password", undo=lambda args: [compensate(post, body=args["password"])])
    def change(password: str) -> None:
        ran.append("change")

    with Session("job", store=tmp_path), pytest.raises(CaptureFailed, match="is a secret"):
        change(SECRET)
    assert ran == []
    clean()


def test_in_what_an_undo_says_in_another_process(tmp_path: Path, clean: Any) -> None:
    @tool
    def out(user: str) -> None:
        login(SECRET)
        raise ValueError(SECRET)

    @tool(undo=lambda args: [compensate(out, user=args["user"])])
    def enter(user: str) -> None:
        ran.append("enter")

    with Session("job", store=tmp_path) as session:
        enter("ann")
    assert not undo_run(tmp_path, session.run_id, tools=[out, enter]).complete
    clean()


def test_in_a_session_inside_of_another(tmp_path: Path, clean: Any) -> None:
    @tool
    def delegate() -> None:
        with Session("inner", store=tmp_path):
            failing(SECRET)

    with Session("outer", store=tmp_path):
        login(SECRET, PIN)
        with pytest.raises(ValueError, match="wrong"):
            delegate()
        with pytest.raises(KeyError), Session("other", store=tmp_path):
            raise KeyError(SECRET)
    with pytest.raises(ValueError, match="wrong"), Session("outer", store=tmp_path):
        delegate()
    clean()


def test_in_the_log(tmp_path: Path, clean: Any, caplog: pytest.LogCaptureFixture) -> None:
    def undo(args: Any, result: Any) -> Any:
        raise ValueError(f"no plan for {args['password']}")

    @tool(secret="password", undo=undo)
    def change(password: str) -> str:
        return "changed"

    with caplog.at_level(logging.DEBUG), Session("job", store=tmp_path):
        change(SECRET)
    assert "no plan for <secret " in caplog.text
    clean()


def test_in_the_registry(tmp_path: Path, clean: Any) -> None:
    @tool(secret=["password", "pin"])
    def change(password: str = SECRET, pin: int = PIN, user: str = "ann") -> None:
        """Change it."""

    registry = Registry(tmp_path)
    proposed = registry.propose(change, by="ann").proposal
    assert proposed is not None
    assert proposed.contract["schema"]["properties"]["user"]["default"] == "ann"
    assert "default" not in proposed.contract["schema"]["properties"]["password"]
    (tmp_path / "other").write_text("x")
    clean()


def test_a_secret_in_parts_is_found_by_each(tmp_path: Path, clean: Any) -> None:
    @tool(secret="login")
    def enter(login: dict[str, Any]) -> str:
        return f"{login['keys'][0]} {login['pin']}"

    with Session("job", store=tmp_path):
        enter({"keys": [SECRET], "pin": PIN})
    clean()


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("abc", "abc is as easy as abc", "abc is as easy as abc"),  # too short to be looked for
        ("1", "1 + 1", "1 + 1"),
        ("", "anything", "anything"),
        ("none", "there is none", "there is none"),
        ("status", '{"status": "ok"}', '{"status": "ok"}'),
        ("4711", "pin 4711, order 94711, 4711.", "pin <>, order 94711, <>."),
        ("hunter2", "hunter2 hunter22 xhunter2 (hunter2)", "<> hunter22 xhunter2 (<>)"),
        ("hunter2hunter2", "xhunter2hunter2x", "x<>x"),
        ("correct horse", "correct%20horse correct+horse", "<> <>"),
        ('a"b\\c', '"a\\"b\\\\c"', '"<>"'),
        ("line\nline", r"'line\nline'", "'<>'"),
    ],
)
def test_what_is_found_and_what_is_let_alone(secret: str, text: str, shown: str) -> None:
    quotes = Quotes()
    quotes.add(secret)
    assert quotes.replace(text, lambda *_: "<>") == shown


def test_of_two_that_begin_alike_the_longer_one_counts() -> None:
    quotes = Quotes()
    for each in ("hunter2-correct", "hunter2-correct-horse", "hunter2-c"):
        quotes.add(each)
    assert quotes.replace("hunter2-correct-horse hunter2-corr", lambda _, s: f"<{len(s)}>") == (
        "<21> <9>orr"
    )


def test_a_word_of_the_trace_itself_breaks_no_trace(tmp_path: Path, events: Any) -> None:
    with Session("job", store=tmp_path / "store") as session:
        for word in ("status", "value", "message", "password", "error", "deny", "text", "body"):
            with contextlib.suppress(ValueError):
                failing(word)
            login(word)
            post({"password": 1})
    assert len(events(session.run_id)) > 20  # and the fixture has checked each of them


def test_in_calls_that_were_refused(tmp_path: Path, clean: Any) -> None:
    with Session("job", store=tmp_path) as session:
        login(SECRET, PIN)
        with pytest.raises(ArgumentsInvalid):
            session.call(post, body=SECRET, more=[{SECRET: PIN}])
        with pytest.raises(ArgumentsInvalid):
            session.call(post, **{SECRET: 1})
        asked = {"$rollcage": "secret", "value": SECRET, "deep": (SECRET, PIN)}
        session.refused("no_such_tool", asked, reason=f"there is none for {SECRET}")
    clean()


# --- names, which are identities -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ({"agent": f"for {SECRET}"}, "its agent"),
        ({"call_id": f"call-{PIN}-1"}, "its call id"),
        ({"conversation": SECRET}, "its conversation"),
    ],
)
def test_a_call_whose_names_quote_one_is_refused(
    tmp_path: Path, clean: Any, events: Any, place: dict[str, Any], what: str
) -> None:
    with Session("job", store=tmp_path / "store") as session:
        login(SECRET, PIN)
        with (
            session.place(turn=1, slot=0, **place),
            pytest.raises(Blocked, match=f"post was not called: .*{what}.* declared secret") as no,
        ):
            post("hello")
        with session.place(turn=1, slot=0, agent="ann", call_id="call-1", conversation="first"):
            post("hello")
    assert ran == ["login", "post"]
    assert no.value.verdict_code == "secret_in_name"
    (refused,) = [e for e in events(session.run_id) if e["event"] == "call.refused"]
    assert (refused["name"], refused["code"]) == ("post", "secret_in_name")
    clean()


async def test_a_call_that_says_its_id_itself_is_refused_where_that_quotes_one(
    tmp_path: Path, clean: Any
) -> None:
    contract = Contract.of(post)
    async with Session("job", store=tmp_path / "store") as session:
        login(SECRET, PIN)
        how: Any = {"call_id": f"id-{SECRET}"}
        with pytest.raises(Blocked, match="its call id quotes a declared secret"):
            session.run(contract, {"body": "hello"}, plain_body(post), **how)
        with pytest.raises(Blocked, match="its call id quotes a declared secret"):
            await session.arun(contract, {"body": "hello"}, plain_body(post), is_async=False, **how)
    assert ran == ["login"]
    clean()


@tool(secret="password")
def sign_in(password: str) -> None:
    ran.append("sign_in")


def test_an_agent_that_was_recorded_first_keeps_its_name(tmp_path: Path) -> None:
    hits = 0
    for _ in range(2):
        session = Session("job", store=tmp_path)
        with contextlib.suppress(InterruptedError), session:
            with session.place(agent="researcher"):
                post("before")
            with session.place(agent="researcher"):
                sign_in("researcher")
            with session.place(agent="researcher"):
                post("after")
            raise InterruptedError
        hits = session.stats.hits
    assert ran == ["post", "sign_in", "post"]
    assert hits == 3


def test_a_tool_that_is_asked_for_by_one_is_on_record_without_it(
    tmp_path: Path, clean: Any, events: Any
) -> None:
    with Session("job", store=tmp_path / "store") as session:
        login(SECRET, PIN)
        with session.place(agent=SECRET):
            session.refused(f"call_{PIN}", {}, call_id=f"id-{PIN}")
    (refused,) = [e for e in events(session.run_id) if e["event"] == "call.refused"]
    assert refused["name"].startswith("call_<secret ")
    clean()


def test_a_branch_and_a_session_are_not_named_by_one(tmp_path: Path, clean: Any) -> None:
    with Session("job", store=tmp_path) as session:
        login(SECRET, PIN)
        with (
            pytest.raises(SessionError, match="branch quotes a declared"),
            session.branch(str(PIN)),
        ):
            pytest.fail("it was opened")
        with (
            pytest.raises(SessionError, match="session quotes a declared"),
            inner(tmp_path, SECRET),
        ):
            pytest.fail("it was opened")
        with inner(tmp_path, "inner", input={"with": SECRET}, user_input=f"use {PIN}"):
            post("hello")
        with session.branch("next"):
            post("hello")
    clean()


def inner(store: Path, name: str, **settings: Any) -> Session:
    return Session(name, store=store, **settings)


def test_ids_that_were_only_detected_as_credentials_stay(tmp_path: Path, events: Any) -> None:
    pytest.importorskip("detect_secrets")
    key = "AKIA" + "Z7Q2M4T6X1B3N5P8"
    with Session("job", store=tmp_path / "store", secrets="detected") as session:
        post({"key": key})
        with session.place(agent="ann", call_id=f"call_{key}"):
            post("hello")
    called = [e.get("call_id") for e in events(session.run_id) if e["event"] == "step.started"]
    assert called == [None, f"call_{key}"]
