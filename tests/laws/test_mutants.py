"""The laws can fail: each one finds a core that is wrong in one thing.

What is wrong is done from outside, at the store: a core that reads a log without some field or
line is one that does not record it, whatever it is made of inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rollcage import RollcageError, Session, current_step

from tests.laws import test_approvals, test_divergence, test_forks, test_orders, test_unclear
from tests.laws.lab import Lab, folder
from tests.laws.law import LAW
from tests.laws.programs import Op, programs, seeds
from tests.laws.test_cuts import cut
from tests.laws.test_exhaustive import every, every_kill
from tests.laws.test_undo import undone
from tests.laws.timeline import Endless, Timeline, Watched, WatchedLog

if TYPE_CHECKING:
    from rollcage.trace.store import Log, Store

pytestmark = [pytest.mark.law, pytest.mark.nightly]

Event = dict[str, Any]
Forge = Callable[[Event], Event | None]
CASES = 50  # in which a wrong core is found


def forged(lines: list[bytes], forge: Forge) -> list[bytes]:
    """Return a log as a core would have it that records something else, chained anew."""
    head, made = b"0" * 64, []
    for line in lines:
        event = forge(orjson.loads(line))
        if event is None:
            continue
        event.pop("hash", None)
        said = orjson.dumps(event)
        head = sha256(head + said).hexdigest().encode()
        made.append(b'%b,"hash":"%b"}\n' % (said[:-1], head))
    return made


class ForgedLog(WatchedLog):
    """A log that is read otherwise than it was written."""

    forge: Forge

    def read(self) -> list[bytes]:
        return forged(super().read(), self.forge)


class Forged(Watched):
    """A store whose logs are read otherwise than they were written."""

    def __init__(self, store: Store, timeline: Timeline, forge: Forge) -> None:
        super().__init__(store, timeline)
        self._forge = forge

    def open(self, run: str, *, take: bool = False) -> Log:
        log = ForgedLog(self._store.open(run, take=take), run, self._timeline)
        log.forge = self._forge
        return log

    def read(self, run: str, after: int = 0) -> list[bytes]:
        lines = forged(super().read(run), self._forge)
        return lines[after:]


def without(*fields: str) -> Callable[[Event], Event]:
    """Forge lines that lack some fields."""
    return lambda event: {name: value for name, value in event.items() if name not in fields}


def dropping(**which: Any) -> Forge:
    """Forge a log that lacks the lines with these values."""
    return lambda event: (
        None if all(event.get(name) == value for name, value in which.items()) else event
    )


def certain(event: Event) -> Event:
    """Forge outcomes of which nobody doubts what they mean."""
    outcome = event.get("outcome")
    return {**event, "outcome": without("unclear")(outcome)} if outcome else event


def alike(event: Event) -> Event:
    """Forge calls of a turn that can't be told apart."""
    return {**without("declared")(event), "slot": 0} if "slot" in event else event


def one_asker(event: Event) -> Event:
    """Forge models that were all asked in one place."""
    return {**event, "branch": "", "rank": 0} if event.get("effect") == "model" else event


def is_found(law: Callable[..., None], *drawn: st.SearchStrategy[Any]) -> bool:
    """Return whether some case breaks a law."""

    @settings(LAW, max_examples=CASES, phases=[Phase.generate], derandomize=True)
    @given(st.tuples(*drawn))
    def tried(case: tuple[Any, ...]) -> None:
        law(*case)

    try:
        tried()
    except (AssertionError, RollcageError):
        return True
    return False


CUTS: list[Any] = [
    pytest.param(dropping(effect="read"), programs(blocks=[]), id="reads are not recorded"),
    pytest.param(
        alike,
        programs(tools=["write"], does=["work"], blocks=["turn"], args=1),
        id="slots are not recorded",
    ),
    pytest.param(
        one_asker,
        programs(tools=["model"], does=["work"], blocks=["branches"], args=1),
        id="models are answered first in, first out",
    ),
    pytest.param(
        dropping(effect="branch", kind="session"),
        programs(blocks=["inner"], length=2),
        id="sessions in sessions are not recorded",
    ),
]


@pytest.mark.parametrize(("forge", "drawn"), CUTS)
def test_cuts_find_what_is_not_recorded(
    forge: Forge, drawn: st.SearchStrategy[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=forge))
    assert is_found(cut, drawn, seeds)


def test_cuts_find_nothing_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=without()))
    assert not is_found(cut, programs(length=2), seeds)


def test_cuts_find_an_intent_that_was_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedLog, "wait", lambda self: self._log.wait())
    monkeypatch.setattr(WatchedLog, "settled", lambda self: self._log.settled())
    assert is_found(cut, programs(blocks=[]), seeds)


def test_undo_finds_keys_that_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_one_epoch() -> Any:
        step = current_step()
        assert step is not None
        key = f"{step.name} {step.run}"
        return SimpleNamespace(run=step.run, number=step.number, idempotency_key=key)

    monkeypatch.setattr("tests.laws.lab.current_step", in_one_epoch)
    single = st.just((Op("plain"),))
    assert not is_found(cut, single, seeds)
    assert is_found(functools.partial(undone, kills=0), single, seeds)


def never_undone(event: Event) -> Event | None:
    """Forge a log of a run in which nothing was ever undone."""
    return None if event["event"] in ("undoing", "undone") else event


def one_less(event: Event) -> Event:
    """Forge an undo that forgets a step."""
    return (
        {**event, "steps": event["steps"][1:]} if event["event"] in ("undoing", "undone") else event
    )


@pytest.mark.parametrize("forge", [never_undone, one_less])
def test_undo_finds_what_is_not_recorded(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=forge))
    law = functools.partial(undone, kills=1)
    assert is_found(law, programs(blocks=["outer"], length=3), seeds)


def test_exhaustive_finds_what_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = dropping(event="undone")
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=forge))
    assert is_found(every_kill, st.sampled_from(every()))


@pytest.mark.parametrize(
    ("law", "instead"),
    [
        (test_divergence.test_halt_runs_nothing_new_while_effects_lie_ahead, "warn"),
        (test_divergence.test_undo_leaves_the_edited_program_alone, "warn"),
    ],
)
def test_pairs_find_another_answer_to_divergence(
    law: Any, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(name: str, **how: Any) -> Session:
        return Session(name, **{**how, "on_divergence": instead})

    monkeypatch.setattr("tests.laws.lab.Session", session)
    assert is_found(law.hypothesis.inner_test, test_divergence.pairs(), seeds)


def test_pairs_find_a_path_that_was_left_unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = without("left")
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=forge))
    law: Any = test_divergence.test_warn_names_what_it_leaves_before_it_writes
    assert is_found(law.hypothesis.inner_test, test_divergence.pairs(raises=False), seeds)


def test_forks_find_borrowed_steps_that_count_as_own(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = dropping(event="forked")
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=forge))
    law: Any = test_forks.test_a_live_fork_of_a_fork_is_undone_alone
    assert is_found(law.hypothesis.inner_test, programs(blocks=[]), seeds)


def test_unclear_failures_that_count_as_clean_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.laws.lab.Watched", functools.partial(Forged, forge=certain))
    law: Any = test_unclear.test_killed_anywhere_it_is_made_once
    assert is_found(law.hypothesis.inner_test, test_unclear.CALLS, test_unclear.CALLS, seeds)


def test_a_gate_that_is_asked_at_times_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def abstains(self: test_approvals.Persons, view: Any) -> Any:
        return None if view.calls > 2 else rule(self, view)

    rule = test_approvals.Persons.rule
    monkeypatch.setattr(test_approvals.Persons, "rule", abstains)
    assert is_found(test_approvals.killed, programs(blocks=["turn"]), seeds)


def test_an_intent_that_looks_at_no_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcage.stages.orders.Orders.ready", lambda *_: True)
    assert is_found(test_orders.lifted, programs(tools=["write"], blocks=["turn"]), seeds)


def test_what_has_no_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.laws.lab.size", lambda _: 1)  # of a core that does much more
    with folder() as root:
        attempt = Lab(root).attempt((Op("write"),) * 200)
    assert isinstance(attempt.error, Endless)
