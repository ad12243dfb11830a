"""What stands in a gate: rules, guards and stages; how they are combined, and what if one fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Clock, Guard, Options, Session, Stage, compensate, open_store, tool
from rollcage.calls.gate import Entry
from rollcage.errors import Blocked, SessionError, UnguardedCallWarning
from rollcage.gate.verdict import StepView, Verdict

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing() -> None:
    ran.clear()


@tool(name="gate.back", effect="write")
def back(n: int) -> None:
    ran.append(("back", n))


@tool(name="gate.write", effect="write", undo=lambda args: [compensate(back, n=args["n"])])
def write(n: int) -> int:
    ran.append(n)
    return n


@tool(name="gate.read", effect="read")
def read(n: int) -> int:
    ran.append(n)
    return n


def code(call: Callable[[], Any]) -> str:
    with pytest.raises(Blocked) as blocked:
        call()
    return blocked.value.verdict_code


def lines(store: Path, run: str) -> list[dict[str, Any]]:
    import orjson

    return [orjson.loads(line) for line in open_store(store).read(run)]


class Counts(Guard):
    """Loses count at the third call."""

    def __init__(self) -> None:
        self.told = 0

    def settled(self, call: Any, outcome: Any, step: Any) -> None:
        self.told += 1
        if self.told == 3:
            raise KeyError("secret")


def test_a_guard_that_loses_count_denies(tmp_path: Path, caplog: Any) -> None:
    with Session("job", store=tmp_path, gate=[Counts()]) as session:
        assert [write(1), read(2), write(3)] == [1, 2, 3]
        assert code(lambda: write(4)) == "guard_failed"
        assert code(lambda: read(4)) == "guard_failed"
    assert ran == [1, 2, 3]
    assert session.stats.blocked == 2
    assert "Counts failed" in caplog.text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("yes", "rule_invalid"),
        (Verdict("maybe"), "rule_invalid"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - what a rule may return
        (Verdict("deny", reason=b"no"), "rule_invalid"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the same
        (RuntimeError("secret"), "rule_error"),
        (Verdict.deny("no", code="mine"), "mine"),
    ],
)
def test_whatever_a_guard_returns_fails_closed(tmp_path: Path, given: Any, expected: str) -> None:
    class Odd(Guard):
        def decide(self, call: Any) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

    with Session("job", store=tmp_path, gate=[Odd()]):
        assert code(lambda: write(1)) == expected
    assert ran == []


def test_an_async_guard_denies(tmp_path: Path) -> None:
    class Late(Guard):
        async def decide(self, call: Any) -> Any:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] - what is tested
            return None

    with Session("job", store=tmp_path, gate=[Late()]):
        assert code(lambda: write(1)) == "rule_invalid"


@pytest.mark.parametrize("turned", [False, True])
def test_deny_wins_whoever_is_asked_first(tmp_path: Path, turned: bool) -> None:
    def asks(_: StepView) -> Verdict:
        return Verdict.ask("may it?")

    class Denies(Guard):
        def decide(self, call: Any) -> Verdict:
            return Verdict.deny("never", code="never")

    both: list[Entry] = [asks, Denies()]
    with Session("job", store=tmp_path, gate=both[::-1] if turned else both):
        assert code(lambda: write(1)) == "never"


def test_deny_wins_over_what_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path):
        write(1)
        raise KeyError

    def never(view: StepView) -> Verdict | None:
        return Verdict.deny("never") if view.effect == "write" else None

    with pytest.raises(Blocked), Session("job", store=tmp_path, gate=[never]):
        write(1)
    with Session("job", store=tmp_path, gate=[never], replay="offline"):
        assert write(1) == 1  # what is recorded, and nothing else
    assert ran == [1]


def test_a_screen_comes_before_validators(tmp_path: Path) -> None:
    class Screens(Guard):
        def screen(self, contract: Any, body: Any, kind: str) -> Verdict | None:
            ran.append((contract.name, body.__name__, kind))
            return Verdict.deny("not here", code="screened") if contract.effect == "write" else None

    any_: Any = {"n": "no number"}
    with Session("job", store=tmp_path, gate=[Screens()]) as session:
        assert code(lambda: write(**any_)) == "screened"
        assert read(1) == 1
    assert ran == [("gate.write", "write", "tool"), ("gate.read", "read", "tool"), 1]
    refused = [each for each in lines(tmp_path, session.run_id) if each["event"] == "refused"]
    assert [each["verdict"]["code"] for each in refused] == ["screened"]
    assert (session.stats.blocked, session.stats.refused) == (1, 0)


class OnlyOne(Guard):
    """Denies each call behind the first one that ended."""

    def __init__(self) -> None:
        self.ended = 0

    def decide(self, call: Any) -> Verdict | None:
        return Verdict.deny("one is enough", code="enough") if self.ended else None

    def settled(self, call: Any, outcome: Any, step: Any) -> None:
        self.ended += 1


def test_a_guard_decides_by_the_calls_that_have_ended(tmp_path: Path) -> None:
    for replay in ("auto", "continue"):
        with Session("job", store=tmp_path, gate=[OnlyOne()], replay=replay):
            write(1)
            with pytest.raises(Blocked, match="one is enough"):
                write(2)


def test_a_rule_counts_the_calls_before(tmp_path: Path) -> None:
    seen: list[Any] = []

    def rule(view: StepView) -> None:
        assert view.run is not None
        seen.append((view.run.name, view.calls, view.run.calls, view.run.elapsed >= 0))

        assert (view.run.id, view.run.tokens, view.run.cost) == (session.run_id, 0, 0.0)

    asked = [("job", n, n, True) for n in range(3)]  # it is a rule of the outer session
    for _ in range(2):  # a replay decides on the same; a call may be decided in several rounds
        seen.clear()
        with Session("job", store=tmp_path, gate=[rule], replay="continue") as session:
            write(1)
            with Session("inner", store=tmp_path):
                write(2)
            read(3)
        assert list(dict.fromkeys(seen)) == asked


def test_a_rule_of_a_nested_session_counts_the_calls_of_that_session(tmp_path: Path) -> None:
    seen: list[Any] = []

    def rule(view: StepView) -> None:
        assert view.run is not None
        seen.append((view.run.name, view.calls, view.run.calls))

    for _ in range(2):
        seen.clear()
        with Session("job", store=tmp_path, replay="continue"):
            write(1)
            read(2)
            with Session("inner", store=tmp_path, gate=[rule]):
                write(3)
                read(4)
            with Session("inner", store=tmp_path, gate=[rule]):
                write(5)
        assert list(dict.fromkeys(seen)) == [("inner", 0, 0), ("inner", 1, 1)]
        assert seen[-1] == ("inner", 0, 0)


def test_a_rule_counts_the_calls_of_runs_inside(tmp_path: Path) -> None:
    """Its own session's, and those that the run inside of it has made so far."""
    seen: list[Any] = []

    def rule(view: StepView) -> None:
        assert view.run is not None
        seen.append((view.args["n"], view.run.calls))

    with Session("job", store=tmp_path):
        write(1)
        read(2)
        with Session("inner", store=tmp_path, gate=[rule]):
            write(3)
            with Session("own", store=tmp_path / "own"):
                write(4)
                read(5)
    assert dict(seen) == {3: 0, 4: 1, 5: 2}


def test_a_rule_sees_how_long_the_session_is_open(tmp_path: Path) -> None:
    now = [5 * 10**9]
    seen: list[float] = []

    def rule(view: StepView) -> None:
        assert view.run is not None
        seen.append(view.run.elapsed)

    clock = Clock(monotonic=lambda: now[0])
    with Session("job", store=tmp_path, gate=[rule], options=Options(clock=clock)):
        write(1)
        now[0] += 2_500_000_000
        write(2)
    assert dict.fromkeys(seen) == {0.0: None, 2.5: None}


class Marks(Stage):
    """A stage that stands in a gate."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.folds = {"step": lambda line: self.said.append(line["name"])}

    def describes(self, session: Session) -> dict[str, Any]:
        return {"marks": True}

    def opened(self, session: Session) -> None:
        self.said.append(f"opened {session.name}")

    def marks(self, call: Any) -> dict[str, Any]:
        return {"test.marked": call.session.name}

    def closed(self, session: Session, error: BaseException | None) -> None:
        self.said.append(f"closed {session.name}")


def test_a_stage_in_an_inner_gate_is_of_that_session(tmp_path: Path) -> None:
    marks = Marks()
    with Session("job", store=tmp_path, gate=[lambda _: None]) as session:
        write(1)
        with Session("inner", store=tmp_path, gate=[marks]):
            write(2)
        write(3)
    assert marks.said == ["opened inner", "gate.write", "closed inner"]
    written = lines(tmp_path, session.run_id)
    marked = [each.get("test.marked") for each in written if each.get("name") == "gate.write"]
    assert marked == [None, "inner", None]
    (attempt,) = [each for each in written if each["event"] == "attempt"]
    assert [list(each) for each in attempt["gate"]] == [["rule"]]
    (inner,) = [each for each in written if each.get("kind") == "session"]
    assert inner["gate"] == [{"marks": True}]


def test_a_gate_guards_threads(tmp_path: Path) -> None:
    def loosely(name: str, **how: Any) -> Any:
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(read(1))
            except Blocked as blocked:
                found.append(blocked.verdict_code)

        with Session(name, store=tmp_path, **how):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return found[0]

    class Shadow(Guard):
        enforces = False

    assert loosely("rule", gate=[lambda _: None]) == "unguarded"
    assert loosely("option", options=Options(unguarded="refuse")) == "unguarded"
    with pytest.warns(UnguardedCallWarning):
        assert loosely("shadow", gate=[Shadow()]) == 1
    how = {"gate": [lambda _: None], "options": Options(unguarded="warn")}
    with pytest.warns(UnguardedCallWarning):
        assert loosely("said", **how) == 1


def test_what_is_no_guard_is_refused(tmp_path: Path) -> None:
    for odd in ("rule", 3, Counts, object()):
        with pytest.raises(SessionError, match="is not a guard"):
            Session("job", store=tmp_path, gate=[odd])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType] - what is tested


def test_strict_as_a_guard_says(tmp_path: Path) -> None:
    class Strict(Guard):
        strict = True

    loose: Any = {"n": "1"}
    with Session("job", store=tmp_path, gate=[Strict()]):
        with pytest.raises(Exception, match="strict"):
            write(**loose)
        with Session("inner", store=tmp_path), pytest.raises(Exception, match="strict"):
            write(**loose)
    with Session("job2", store=tmp_path):
        assert write(**loose) == 1


async def test_the_same_in_async_sessions(tmp_path: Path) -> None:
    marks = Marks()
    async with (
        Session("job", store=tmp_path, gate=[Counts()]),
        Session("inner", store=tmp_path, gate=[marks]) as inner,
    ):
        done = await asyncio.gather(*(inner.acall(write, n=n) for n in range(3)))
        assert done == [0, 1, 2]
        with pytest.raises(Blocked):
            await inner.acall(write, n=4)
    assert marks.said == ["opened inner", *["gate.write"] * 3, "closed inner"]


@pytest.mark.parametrize(
    "reads",
    [
        lambda labels: "untrusted" in labels,
        lambda labels: {"untrusted"} & labels,
        lambda labels: labels & {"untrusted"},
        lambda labels: not labels.isdisjoint(["untrusted"]),
        lambda labels: {"untrusted"} <= labels,
        lambda labels: not {"untrusted"}.isdisjoint(labels),
        lambda labels: any(each == "untrusted" for each in labels),
        bool,
        lambda labels: len(labels) > 0,
        lambda labels: labels == frozenset({"untrusted"}),
        lambda labels: frozenset({"untrusted"}) == labels,
        sorted,
    ],
)
def test_labels_that_nobody_tracks_deny(tmp_path: Path, reads: Callable[[Any], Any]) -> None:
    def rule(step: StepView) -> Verdict | None:
        return Verdict.deny("it is a page's") if reads(step.labels) else None

    with (
        Session("job", store=tmp_path, gate=[rule]),
        pytest.raises(Blocked, match=r"pip install 'rollcage\[policy\]'") as blocked,
    ):
        write(1)
    assert blocked.value.verdict_code == "labels_untracked"
