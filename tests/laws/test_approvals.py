"""Law 19: no call that a rule asks about runs without a yes of its own, killed and undone anywhere.

A yes is given to one request, and a request is made for one call, at its place, between two undos.
It is used up when the body has ended. A call that is refused does nothing, however often its run is
resumed.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from rollcage import (
    Approval,
    ApprovalRequest,
    ApprovalRequired,
    StepView,
    UnknownOutcome,
    Verdict,
)
from rollcage.errors import ApprovalInvalid, SessionError
from rollcage.gate import Pending
from rollcage.stages.queue import ApprovalQueue, QueueApprover
from rollcage_fork import Fork

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import accounts, chances, comparable, fewer, offline, order
from tests.laws.programs import LEAVES, Program, programs, seeds, sequential
from tests.laws.test_forks import what_if
from tests.laws.test_undo import kept, resolve_all, undo
from tests.laws.timeline import Deed

pytestmark = pytest.mark.law

WAYS = ("approve", "approve", "approve", "reject", "edit", "answer")
EDITED = 20  # an argument of no other call, of a fork that is edited neither
ASKED = ("write", "idem", "outer", "stream", "thread", "read", "model", "scope")


class Persons:
    """Who decides: on each call always alike, here and now, later, or while the run goes on.

    Attributes:
        asks: the names of the tools that a rule asks about, with one of their arguments.
        rejects: those of them that are refused.
        edits: those that are made with another argument, `EDITED`.
        answers: those that a person answers, with nothing, in place of the tool.
    """

    def __init__(self, chance: random.Random) -> None:
        calls = [(name, arg) for name in ASKED for arg in (0, 1)]
        self.asks = {each for each in calls if chance.random() < 0.5}
        ways = {each: chance.choice(WAYS) for each in sorted(self.asks)}
        self.rejects = {each for each, way in ways.items() if way == "reject"}
        leaves = {each for each in ways if each[0] in ("write", "idem")}
        self.edits = {each for each in leaves if ways[each] == "edit"}
        self.answers = {each for each in leaves if ways[each] == "answer"}
        self._chance = chance

    def rule(self, view: StepView) -> Verdict | None:
        """Ask about some calls."""
        if (view.name, view.args.get("arg")) in self.asks:
            return Verdict.ask("somebody has to look at it")
        return None

    def answer(self, request: ApprovalRequest) -> Approval:
        """Say yes or no, or what else to do."""
        asked = request.name, request.args["arg"]
        if asked in self.rejects:
            return Approval.reject("not that one", by="ann")
        if asked in self.edits:
            return Approval.edit({**request.args, "arg": EDITED}, by="ann")
        if asked in self.answers:
            return Approval.respond("", by="ann")
        return Approval(True, by="ann", of=request.id)

    def at_once(self, request: ApprovalRequest) -> Approval | Pending:
        """Answer while the call waits, mostly."""
        return Pending("in a moment") if self._chance.random() < 0.3 else self.answer(request)

    def later(self, lab: Lab) -> None:
        """Answer some of the waiting requests, at least one, from another process."""
        queue = ApprovalQueue(lab.store)
        waiting = queue.waiting()
        for request in self._chance.sample(waiting, self._chance.randint(1, len(waiting))):
            answer = self.answer(request)
            queue.decide(request.id, answer)
            with pytest.raises(ApprovalInvalid):
                queue.decide(request.id, Approval(True, by="eve"))

    def attempt(self, lab: Lab, program: Program, **how: Any) -> Attempt:
        """Run or resume a program once."""
        approver = self.at_once if self._chance.random() < 0.5 else QueueApprover(lab.store)
        how |= order(program, self._chance)
        return lab.attempt(program, gate=[self.rule], approver=approver, **how)

    def is_through(self, lab: Lab, attempt: Attempt) -> bool:
        """Tell whether an attempt was the last; say what became of steps, and decide, if not."""
        error = attempt.error
        if error is None:
            self.used(lab)
            return True
        if isinstance(error, UnknownOutcome):
            lab.resolve(error.run, error.step)
        elif not isinstance(error, ApprovalRequired):
            raise error
        elif ApprovalQueue(lab.store).waiting():
            self.later(lab)
        return False

    def through(self, lab: Lab, program: Program, **how: Any) -> Attempt:
        """Run or resume a program until it is through, and decide whatever it asks."""
        self.watch(lab)
        for _ in range(ATTEMPTS):
            attempt = self.attempt(lab, program, **how)
            if self.is_through(lab, attempt):
                return attempt
        raise AssertionError("it is asked about for ever")

    def resumed(self, lab: Lab, program: Program) -> Attempt:
        """Resume a program until it is through."""
        goes_on = lab.finished() or self._chance.random() < 0.5
        return self.through(lab, program, replay="continue" if goes_on else "auto")

    # --- the law ---------------------------------------------------------------------------------

    def watch(self, lab: Lab) -> None:
        """Check each effect at the moment before it is done."""
        lab.world.watch = lambda deed: self.is_allowed(lab, deed)

    def is_allowed(self, lab: Lab, deed: Deed) -> None:
        """Check that somebody has said yes to this effect, and that the yes is not used up."""
        events = lab.events(deed.run)  # once: other calls write meanwhile
        places = places_of(events)
        place, allowed = places[deed.step], yeses(own(events, deed.run), places)
        made = [each for each in deeds(lab, deed.run) if places[each.step] == place]
        name, _, arg = deed.label.partition("-")
        if (name, int(arg)) in self.asks or int(arg) == EDITED:
            assert allowed[place] > len(made), f"{deed.label} was not approved"

    def used(self, lab: Lab) -> None:
        """Check that what was refused, edited or answered was not done."""
        for name, arg in self.rejects | self.edits | self.answers:
            assert not lab.timeline.performed[f"{name}-{arg}"]


def places_of(events: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Return the fingerprint of each step: it names the place."""
    steps = (event for event in events if event["event"] == "step")
    return {event["step"]: event["fingerprint"] for event in steps}


def own(events: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """Return the lines of a run itself: of a fork, the ones behind its copy of another run."""
    forked = [n for n, event in enumerate(events) if event["event"] == "forked"]
    return events[forked[-1] :] if forked else events


def yeses(events: Iterable[dict[str, Any]], places: dict[int, str]) -> Counter[str]:
    """Count the requests of each place that were answered with yes."""
    of: dict[str, int] = {}
    found: Counter[str] = Counter()
    for event in events:
        if event["event"] == "requested":
            of[event["id"]] = event["step"]
        elif event["event"] == "decided" and event["decision"] in ("approved", "edited"):
            found[places[of[event["id"]]]] += 1
    return found


def deeds(lab: Lab, run: str) -> list[Deed]:
    """Return the effects that a run has had, the ones taken back too."""
    every = (each for each in lab.timeline.moments if isinstance(each, Deed))
    return [each for each in every if each.sign > 0 and each.run == run]


def through_a_fork(lab: Lab, program: Program, fork: Fork, persons: Persons) -> Attempt:
    """Run a live fork until it is through, and decide whatever it asks."""
    how: dict[str, Any] = {"stages": [fork], "on_divergence": "warn"}
    for _ in range(ATTEMPTS):
        attempt = persons.attempt(lab, program, **how)
        if attempt.run:
            how |= {"run": attempt.run, "replay": "continue"}
        if persons.is_through(lab, attempt):
            return attempt
    raise AssertionError("it is asked about for ever")


def killed(program: Program, seed: int) -> None:
    """Check the law for a program that is killed twice."""
    chance = chances(seed)
    persons = Persons(chance)
    with folder() as root:
        whole = Lab(root / "whole")
        told = persons.through(whole, program)
        accounts(whole, told)
        lab = whole
        for kill in range(2):
            moment = chance.randint(1, len(lab.timeline.moments))
            lab = lab.at(root / f"killed-{kill}", moment, chances(chance.random()))
            attempt = persons.resumed(lab, program)
            accounts(lab, attempt)
            assert lab.timeline.effects == whole.timeline.effects
            if sequential(program):
                assert comparable(program, attempt) == comparable(program, told)
            offline(lab, program, attempt, chance)


@fewer(2)
@given(programs(blocks=["outer", "scope", "turn"]), seeds)
def test_calls_in_turns_and_in_bodies(program: Program, seed: int) -> None:
    killed(program, seed)


@fewer(2)
@given(
    programs(
        tools=[*LEAVES, "stream", "thread"],
        blocks=["outer", "scope", "turn", "branches", "inner", "block", "overlap"],
    ),
    seeds,
)
def test_branches_sessions_transactions_and_streams(program: Program, seed: int) -> None:
    killed(program, seed)


@fewer(2)
@given(programs(blocks=["outer", "scope", "turn", "inner", "branches"]), seeds)
def test_what_was_undone_is_asked_about_again(program: Program, seed: int) -> None:
    chance = chances(seed)
    persons = Persons(chance)
    with folder() as root:
        lab = Lab(root / "whole")
        persons.through(lab, program)
        effects, run = lab.timeline.effects, lab.newest()
        last = max((event.get("step", 0) for event in lab.events(run)), default=0)
        to = chance.randint(0, last)
        left = kept(lab, run, to)
        undo(lab, run, chance, to=to or None)
        assert lab.timeline.effects == left
        attempt = persons.through(lab, program, replay="continue")
        accounts(lab, attempt)
        assert lab.timeline.effects == effects


@fewer(4)
@given(programs(blocks=["outer", "scope", "turn", "inner", "branches"], raises=False), seeds)
def test_a_live_fork_asks_for_itself(program: Program, seed: int) -> None:
    """What was allowed in the run that it is of was allowed there, once."""
    chance = chances(seed)
    persons = Persons(chance)
    with folder() as root:
        whole = Lab(root / "whole")
        persons.through(whole, program)
        lab = whole.at(root / "cut", chance.randint(1, len(whole.timeline.moments)))
        if lab.timeline.newest() is None:
            return
        lab.settle()
        resolve_all(lab, lab.newest())
        persons.watch(lab)
        fork = what_if(lab, lab.newest(), chance, live=True)
        with contextlib.suppress(SessionError):  # its step was made again later
            through_a_fork(lab, program, fork, persons)
