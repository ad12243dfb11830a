"""`Session(gate=[…])`: policies, facades, rules and guards, and what they say together."""

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator
from rollcage import (
    Approval,
    Blocked,
    Contract,
    FacadeMissing,
    PackageMissing,
    SessionError,
    Settled,
    StepView,
    Verdict,
    tool,
)
from rollcage.gate import Given
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage_governance import Facade, Registry
from rollcage_policy import Policy

Approve = Callable[..., Registry]


@tool(effect="write")
def note(text: str) -> str:
    return text


@tool(effect="read")
def look(what: str) -> str:
    return what


@tool(effect="read")
def fail(what: str) -> str:
    raise ValueError(what)


@dataclass
class Watcher:
    """A guard with all three methods; it denies what it is told to."""

    unscreened: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    settled_with: list[Settled] = field(default_factory=list)

    def screen(self, contract: Contract) -> Verdict | None:
        if contract.name in self.unscreened:
            return Verdict.deny(f"{contract.name} is not for you", code="not_for_you")
        return None

    def decide(self, view: StepView) -> Verdict | None:
        return Verdict.deny("not that") if view.args.get("text") in self.denied else None

    def settled(self, details: Settled) -> None:
        self.settled_with.append(details)

    @property
    def told(self) -> list[tuple[str, str, bool]]:
        return [(each.view.name, each.status, each.replayed) for each in self.settled_with]


def policy(rules: str) -> Policy:
    return Policy.parse(f'version = 1\ndefault = "allow"\n{rules}')


def rule(decision: str, reason: str = "because") -> str:
    return f'[[rules]]\nid = "{decision}-it"\ndecision = "{decision}"\nreason = "{reason}"\n'


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(Blocked) as blocked:
        call()
    return blocked.value.verdict_code


# --- what is combined ----------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
def test_deny_goes_over_ask_goes_over_allow_wherever_they_stand(
    store: JsonlStore, *, turned: bool
) -> None:
    def asks(view: StepView) -> Verdict:
        return Verdict.ask("sure?")

    def yes(request: object) -> Approval:
        return Approval(True, by="ann")

    gate: list[Given] = [policy(rule("allow")), asks, Watcher(denied=("no",))]
    if turned:
        gate.reverse()
    with Session("job", store=store, gate=gate, approver=yes):
        assert note("yes") == "yes"
        assert code_of(lambda: note("no")) == "denied"
    gate = [policy(rule("deny")), asks]
    if turned:
        gate.reverse()
    with Session("other", store=store, gate=gate, approver=yes) as session:
        assert code_of(lambda: note("yes")) == "denied"
        assert session.policy is gate[turned]


def test_the_words_are_the_same_as_the_list(store: JsonlStore, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(f'version = 1\ndefault = "allow"\n{rule("deny")}')

    def no(view: StepView) -> Verdict:
        return Verdict.deny("no")

    given: dict[str, Any]
    for given in ({"policy": file, "rules": [no]}, {"gate": [Policy.load(file), no]}):
        session = Session("job", store=store, replay="off", **given)
        with session:
            assert code_of(lambda: note("a")) == "denied"
        started = JsonlStore(store.root).read(session.run_id).data.split(b"\n")[0]
        assert b'"rules":["test_the_words_are_the_same_as_the_list.<locals>.no"]' in started
        assert Policy.load(file).digest.encode() in started


def test_a_facade_in_the_list_is_read_when_the_session_opens(
    store: JsonlStore, approve: Approve
) -> None:
    with pytest.raises(FacadeMissing), Session("early", store=store, gate=[Facade("agent")]):
        pass
    approve(note)
    with Session("job", store=store, gate=[Facade("agent")]) as session:
        assert note("a") == "a"
        assert code_of(lambda: look("a")) == "tool_unapproved"
        assert session.facade is not None
        assert session.facade.name == "agent"


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ([3], "3 is not a guard"),
        ([Watcher], "is not a guard"),
        (["policy.toml"], "'policy.toml' is not a guard"),
        ([policy(""), policy("")], "one policy"),
        ([Facade("a"), Facade("b")], "one facade, not 'a' and 'b' too"),
    ],
)
def test_what_is_no_guard_is_refused_before_anything_begins(
    store: JsonlStore, gate: list[Any], said: str
) -> None:
    with pytest.raises(SessionError, match=said):
        Session("job", store=store, gate=gate)
    assert not list(store.runs())


def test_without_the_package_a_facade_is_refused_and_nothing_is_undone(
    store: JsonlStore, approve: Approve, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(note)
    with Session("job", store=store, facade="agent") as session:
        note("a")
    monkeypatch.setitem(sys.modules, "rollcage_governance", None)
    with pytest.raises(PackageMissing, match=r"pip install 'rollcage\[governance\]'") as missing:
        Session("job", store=store, facade="agent")
    assert (missing.value.extra, missing.value.code) == ("governance", "package_missing")
    with pytest.raises(PackageMissing, match="the run's facade 'agent' needs rollcage-governance"):
        undo_run(store, session.run_id)


def test_without_the_package_a_policy_is_refused(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rollcage_policy", None)
    with pytest.raises(PackageMissing, match=r"policy='p.toml' needs rollcage-policy") as missing:
        Session("job", store=store, policy="p.toml")
    assert missing.value.extra == "policy"


# --- screen --------------------------------------------------------------------------------------


def test_what_is_screened_out_has_no_validator_called(store: JsonlStore) -> None:
    called: list[object] = []

    def seen(value: object) -> object:
        called.append(value)
        return value

    @tool(effect="write")
    def hidden(text: Annotated[str, BeforeValidator(seen)]) -> str:
        raise AssertionError("it does not run")

    guard = Watcher(unscreened=("hidden",))
    with Session("job", store=store, gate=[guard]):
        assert code_of(lambda: hidden("a")) == "not_for_you"
        assert note("a") == "a"
    assert called == []
    assert guard.told == [("hidden", "blocked", False), ("note", "ok", False)]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (Verdict.ask("sure?"), "rule_invalid"),
        ("no", "rule_invalid"),
        (Verdict("deny", b"no"), "rule_invalid"),  # type: ignore[arg-type] # what anybody may write # pyright: ignore[reportArgumentType]
        (KeyError("x"), "rule_error"),
    ],
)
def test_a_screen_that_fails_denies(store: JsonlStore, said: object, code: str) -> None:
    class Broken:
        def screen(self, contract: Contract) -> Any:
            if isinstance(said, Exception):
                raise said
            return said

    with Session("job", store=store, gate=[Broken()]):
        assert code_of(lambda: note("a")) == code


def test_what_takes_a_step_back_is_screened_too(
    store: JsonlStore, tmp_path: Path, files: Any
) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(tmp_path / "file"), text="a")
    guard = Watcher(unscreened=("restore_file",))
    report = undo_run(store, session.run_id, gate=[guard])
    assert not report.complete
    assert (tmp_path / "file").read_text() == "a"
    assert undo_run(store, session.run_id, gate=[Watcher()]).complete


# --- settled -------------------------------------------------------------------------------------


def test_a_guard_is_told_how_each_call_ended(store: JsonlStore) -> None:
    guard = Watcher(denied=("no",))

    def job() -> None:
        note("a")
        with pytest.raises(ValueError, match="b"):
            fail("b")
        with pytest.raises(Blocked):
            note("no")

    with Session("job", store=store, gate=[guard], replay="off"):
        job()
    told = [("note", "ok", False), ("fail", "error", False), ("note", "blocked", False)]
    assert guard.told == told
    first, _, last = guard.settled_with
    assert first.outcome["value"] == "a"
    assert dict(first.view.args) == {"text": "a"}
    assert last.verdict.decision == "deny"
    again = Watcher(denied=("no",))
    with Session("job", store=store, gate=[again], replay="continue"):
        note("a")
    assert again.told == [("note", "ok", True)]


class Budget:
    """A guard of a few lines; it gives back what was not used up."""

    def __init__(self, calls: int) -> None:
        self.left, self.lock = calls, threading.Lock()

    def decide(self, view: StepView) -> Verdict | None:
        if view.name != "note":
            return None
        with self.lock:
            if not self.left:
                return Verdict.deny("no more notes", code="spent")
            self.left -= 1
        return None

    def settled(self, details: Settled) -> None:
        if details.view.name == "note" and details.status == "blocked":
            with self.lock:
                self.left += details.verdict.code != "spent"


def test_a_budget_holds_in_threads_branches_and_inside(store: JsonlStore) -> None:
    budget, ran = Budget(10), list[str]()

    @tool(effect="scope")
    def inside(text: str) -> str:
        with Session("inside", store=store, gate=[Watcher(denied=("no",))]):
            with pytest.raises(Blocked):
                note("no")  # what it took is given back
            return note(text)

    with Session("job", store=store, gate=[budget]) as session:
        assert inside("a") == "a"

        def work(name: str) -> None:
            with session.branch(name):
                for number in range(8):
                    with contextlib.suppress(Blocked):
                        ran.append(note(f"{name} {number}"))

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(work, name))
            for name in ("left", "right")
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(ran) == 9
    assert budget.left == 0


async def test_async_calls_and_streams_settle_when_they_end(store: JsonlStore) -> None:
    @tool(effect="read")
    async def wait(name: str) -> str:
        await asyncio.sleep(0)
        return name

    @tool(effect="read")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @tool(effect="read")
    def letters(text: str) -> Iterator[str]:
        yield from text

    guard = Watcher()
    async with Session("job", store=store, gate=[guard]):
        assert await wait("a") == "a"
        numbers = count(2)
        assert await anext(numbers) == 0
        assert guard.told == [("wait", "ok", False)]
        assert [each async for each in numbers] == [1]
        assert list(letters("ab")) == ["a", "b"]
        letters("never read")
    assert guard.told == [("wait", "ok", False), ("count", "ok", False), ("letters", "ok", False)]


def test_a_guard_that_lost_count_lets_nothing_through_any_more(store: JsonlStore) -> None:
    class Counter:
        def settled(self, details: Settled) -> None:
            raise KeyError(details.view.name)

    with Session("job", store=store, gate=[Counter()]):
        assert note("a") == "a"
        assert code_of(lambda: note("b")) == "guard_failed"
        with Session("inside", store=store):
            assert code_of(lambda: note("c")) == "guard_failed"


# --- sessions inside of one another --------------------------------------------------------------


def test_a_guard_around_screens_decides_and_is_told_of_what_happens_inside(
    store: JsonlStore,
) -> None:
    outer, inner = Watcher(unscreened=("look",), denied=("no",)), Watcher(denied=("never",))
    with Session("outside", store=store, gate=[outer]), Session("in", store=store, gate=[inner]):
        assert note("a") == "a"
        assert code_of(lambda: look("a")) == "not_for_you"
        assert code_of(lambda: note("no")) == "denied"
        assert code_of(lambda: note("never")) == "denied"
    assert outer.told == inner.told
    assert [status for _, status, _ in outer.told] == ["ok", "blocked", "blocked", "blocked"]


def test_a_resume_asks_guards_of_recorded_calls_as_well(store: JsonlStore) -> None:
    with Session("job", store=store, gate=[Watcher()]):
        note("a")
        note("b")
    with Session("job", store=store, gate=[Watcher(denied=("a",))], replay="continue"):
        assert code_of(lambda: note("a")) == "denied"
