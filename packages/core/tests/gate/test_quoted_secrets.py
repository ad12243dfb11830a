"""A declared secret never reaches the disk, wherever an error, a result or a reason quotes it."""

import asyncio
import base64
import contextlib
import json
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
    Guard,
    NotReplayable,
    QueueApprover,
    Session,
    TraceUnwritable,
    Verdict,
    compensate,
    tool,
)
from rollcage.gate.quotes import Quotes
from rollcage.gate.sealing import Sealing
from rollcage.replay.call import Call
from rollcage.stages.secrets import Secrets
from rollcage.trace.run import Outcome, Step
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
        written = held.decode(errors="replace") + caplog.text
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
def odd(password: str) -> list[Any]:
    return [password, object()]


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
    with Session("job", store=tmp_path, stages=[Secrets()]) as session:
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
    with pytest.raises(BrokenPipeError), Session("job", store=store, stages=[Secrets()]) as session:
        login(SECRET)
        raise BrokenPipeError
    outcome = next(e["outcome"] for e in events(session.run_id) if e["event"] == "outcome")
    assert outcome["lossy"] == "$: a declared secret is never recorded"
    with Session("other", store=store, stages=[Secrets()]) as session:
        odd(SECRET)
    outcome = next(e["outcome"] for e in events(session.run_id) if e["event"] == "step")
    lost, kept = outcome["lossy"].split("; ")
    assert "object" in lost
    assert kept.endswith("a declared secret is never recorded")
    with (
        pytest.raises(NotReplayable, match="a declared secret is never recorded"),
        Session("job", store=store, stages=[Secrets()]),
    ):
        login(SECRET)
    assert ran == ["login"]
    clean()


def test_a_read_whose_result_held_one_runs_again(tmp_path: Path, clean: Any) -> None:
    for replay in ("off", "resume"):
        with Session("job", store=tmp_path, stages=[Secrets()], replay=replay):
            assert SECRET in look(SECRET)
            post("behind it")
    assert ran == ["look", "post", "look"]
    clean()


def test_in_an_error(tmp_path: Path, clean: Any) -> None:
    said: list[str] = []
    for replay in ("off", "resume"):
        with Session("job", store=tmp_path, stages=[Secrets()], replay=replay):
            with pytest.raises(ValueError, match="wrong") as raised:
                failing(SECRET)
            said.append(str(raised.value))
            post(f"it failed: {raised.value.args[0]}")  # the same call, by the same key
    assert "<secret " in said[1]
    assert ran == ["failing", "post"]
    clean()


def test_in_the_error_that_ends_the_run(tmp_path: Path, clean: Any) -> None:
    with pytest.raises(RuntimeError), Session("job", store=tmp_path, stages=[Secrets()]):
        with contextlib.suppress(ValueError):
            failing(SECRET)
        raise RuntimeError(f"could not use {SECRET}")
    clean()


def test_in_the_arguments_of_nested_and_of_later_calls(tmp_path: Path, clean: Any) -> None:
    modes: dict[Any, int] = {"off": 3, "offline": 0}
    for replay, misses in modes.items():
        with Session("job", store=tmp_path, stages=[Secrets()], replay=replay) as session:
            nested(SECRET)
            post(SECRET)
        assert session.stats.misses == misses
    assert ran == ["post", "post"]
    clean()


def test_in_what_somebody_is_asked_and_says(tmp_path: Path, clean: Any) -> None:
    def asking(view: Any) -> Verdict:
        return Verdict.ask(f"really with {view.args['password']}?")

    with (
        pytest.raises(ApprovalRequired),
        Session(
            "job",
            store=tmp_path,
            stages=[Secrets()],
            gate=[asking],
            approver=QueueApprover(tmp_path),
        ),
    ):
        login(SECRET)
    with Session(
        "job",
        store=tmp_path,
        stages=[Secrets()],
        replay="off",
        gate=[asking],
        approver=lambda _: Approval(True, "ann", f"{SECRET} is fine"),
    ):
        login(SECRET)
    clean()


def test_in_a_large_value(tmp_path: Path, clean: Any) -> None:
    with Session("job", store=tmp_path, stages=[Secrets()]):
        login(SECRET)
        post("x " * 100_000 + SECRET)
    clean()


def test_what_an_undo_would_have_to_write_is_refused(tmp_path: Path, clean: Any) -> None:
    @tool(secret="password", undo=lambda args: [compensate(post, body=args["password"])])
    def change(password: str) -> None:
        ran.append("change")

    with (
        Session("job", store=tmp_path, stages=[Secrets()]),
        pytest.raises(CaptureFailed, match="is a secret"),
    ):
        change(SECRET)
    assert ran == []
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

    with Session("job", store=tmp_path, stages=[Secrets()]):
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


def test_in_calls_that_were_refused(tmp_path: Path, clean: Any) -> None:
    with Session("job", store=tmp_path, stages=[Secrets()]) as session:
        login(SECRET, PIN)
        with pytest.raises(ArgumentsInvalid):
            session.call(post, body=SECRET, more=[{SECRET: PIN}])
        with pytest.raises(ArgumentsInvalid):
            session.call(post, **{SECRET: 1})
        asked = {"$rollcage": "secret", "value": SECRET, "deep": (SECRET, PIN)}
        session.refused("no_such_tool", asked, reason=f"there is none for {SECRET}")
    clean()


# --- names, which are identities -----------------------------------------------------------------


@tool(secret="password")
def sign_in(password: str) -> None:
    ran.append("sign_in")


def test_an_agent_that_was_recorded_first_keeps_its_name(tmp_path: Path) -> None:
    hits = 0
    for _ in range(2):
        session = Session("job", store=tmp_path, stages=[Secrets()])
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


class Counts(Guard):
    """A guard that loses count, and says on what."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        assert call is not None
        raise ValueError(f"unexpected: {call.values}")


def quotes_it(args: dict[str, Any], **more: Any) -> Any:
    if ran:  # the state before, and a refusal to plan, are another matter
        raise ValueError(f"unexpected: {args} {more}")
    return {"logged in": 0}


@tool(
    secret=["password", "pin"],
    observe=quotes_it,
    undo=lambda args, result: quotes_it(args, result=result),
)
def enter(password: str, pin: int = PIN) -> str:
    ran.append("enter")
    return "welcome"


def test_in_what_a_guard_and_a_tools_own_functions_fail_on(
    tmp_path: Path, clean: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Session("job", store=tmp_path, gate=[Counts()]):
        with Session("inner", store=tmp_path):
            enter(SECRET)
        with pytest.raises(Blocked, match="lost count"):
            enter(SECRET)
    for said in ("failed on how a call ended", "can't be planned", "can't be observed"):
        assert said in caplog.text
    assert caplog.text.count("unexpected: {'password': '<secret ") == 3
    assert caplog.text.count("in quotes_it") == 2  # it is told where
    clean()


class Fails(Sealing):
    """Hides nothing any more once a text says so."""

    def hide(self, encoded: Any, names: Any = ()) -> Any:
        if "broken" in str(encoded):
            raise ValueError(f"can't hide {SECRET}")
        return super().hide(encoded, names)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_end_that_can_not_be_concealed_halts(
    tmp_path: Path, clean: Any, *, is_async: bool
) -> None:
    def job() -> Session:
        return Session("job", store=tmp_path, stages=[Secrets(Fails)])

    async def run() -> None:
        async with job():
            await asyncio.to_thread(post, "x")
            login(SECRET, PIN)
            raise RuntimeError("broken")

    with pytest.raises(TraceUnwritable, match="goes on from the lines on record") as halt:
        if is_async:
            asyncio.run(run())
        else:
            with job():
                post("x")
                login(SECRET, PIN)
                raise RuntimeError("broken")
    assert SECRET not in str(halt.value)
    clean()
    with Session("job", store=tmp_path) as session:
        post("x")
        assert session.stats.hits == 1
