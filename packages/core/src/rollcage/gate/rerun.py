"""A policy over a recorded run: what it would have said of each call. No tool runs.

The calls come in the order in which they are recorded, each at its recorded time, with what it used
and how it ended. The agent is taken to go on as it did. So calls count in the limits that were made
in the run and that this policy lets through, and those that only it lets through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from rollcage.contract.contract import Contract
from rollcage.errors import StoreError
from rollcage.gate.addresses import Resolver
from rollcage.gate.labels import NO_LABELS, Found, Labels
from rollcage.gate.meter import Meter, Ticket
from rollcage.gate.policy import Policy
from rollcage.gate.recorded import (
    CALLS,
    Contracts,
    Figures,
    Unknown,
    arguments_of,
    is_whole,
    said_in,
    verdict_of,
)
from rollcage.gate.trial import Explained, Trial
from rollcage.gate.verdict import StepView, Verdict
from rollcage.undo.compensation import holds_secret
from rollcage.values.codec import TAG
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception

__all__ = ["Judged", "Rerun"]

Event = Mapping[str, Any]
_FACADE: Final = "facade "  # how the rule of what a facade refuses begins
_NO_FRAMEWORK: Final = "-"  # values come back as neutral data: no adapter's code runs


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A recorded call, and what the policy says of it.

    Attributes:
        step: its number; 0 where it was asked about and never went on.
        time: when it was recorded (Unix, µs).
        view: the call, as the policy was shown it.
        was: what was decided in the run.
        made: whether it ran there, or was answered from a recording.
        now: what the policy says; None where that depends on something unknown.
        unknown: what rules ask for that is not known: `tool.risk`, `args.password`, ….
        apart: why the policy has nothing to say in it, where it has not; `now` is as it `was`.
        rules: what became of each rule, where that was asked for.
    """

    step: int
    time: int
    view: StepView
    was: Verdict
    made: bool
    now: Verdict | None
    unknown: tuple[str, ...] = ()
    apart: str = ""
    rules: tuple[Explained, ...] = ()

    @property
    def changes(self) -> bool | None:
        """Whether the decision is another one; None where that is not known."""
        return None if self.now is None else self.now.decision != self.was.decision


class Rerun:
    """Runs a policy over recorded runs; over any number of them, one after the other.

    Args:
        policy: the policy.
        tools: the contracts of today's tools, for what the trace does not hold (risk, permissions,
            …). One stands for the recorded tool if its name, version and effect are the same.
        said: the user's own words, in place of those that are recorded with each run.
        resolver: see `Trial`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tools: Iterable[Contract] = (),
        said: str | Iterable[str] | None = None,
        resolver: Resolver | bool = False,
    ) -> None:
        self.policy = policy
        self._said = said
        self._resolver = resolver
        self._trial = Trial(policy, said=said, resolver=resolver)
        self._contracts = Contracts(tools)

    def over(
        self,
        events: Iterable[Event],
        get_blob: Callable[[str], bytes],
        *,
        explain: int = 0,
        decided: Collection[str] = (),
    ) -> Iterator[Judged]:
        """What the policy says of each call of a run, in the order of the recording.

        Args:
            events: of the run's trace, checked.
            get_blob: gives a large value; StoreError where it can't.
            explain: the number of a step of which it is told what becomes of each rule.
            decided: the ids of requests for approval that were decided in other runs, which are
                looked at as well: their calls are counted there.

        Raises:
            ContractError: a call of a tool with a name that no tool can have.
        """
        listed = [*events]
        trial = self._trial
        words = said_in(listed[0], get_blob) if self._said is None else None
        if words is not None:
            trial = Trial(self.policy, said=words, resolver=self._resolver)
        run = _Run(self.policy, trial, self._contracts, listed, get_blob, decided)
        for event in listed:
            judged = run.take(event, explain=explain)
            if judged is not None:
                yield judged


def _not_deciding(explained: Explained) -> Explained:
    evaluation = dataclasses.replace(explained.evaluation, decides=False)
    return dataclasses.replace(explained, evaluation=evaluation)


@dataclasses.dataclass(slots=True)
class _Open:
    """A call that has begun, and what it takes until it ends."""

    contract: Contract
    kind: str
    found: Found
    ticket: Ticket | None
    parent: int


def _place(event: Event) -> tuple[Any, ...]:
    """Which call an event is about."""
    return event["key"], event.get("branch", ""), event["turn"], event["slot"]


class _Run:
    """One run, as far as it was followed."""

    def __init__(
        self,
        policy: Policy,
        trial: Trial,
        contracts: Contracts,
        events: list[Event],
        get_blob: Callable[[str], bytes],
        decided: Collection[str],
    ) -> None:
        self._policy = policy
        self._trial = trial
        self._contracts = contracts
        self._get_blob = get_blob
        self._started = events[0]
        self._redacted = bool(self._started.get("redacted"))
        self._calls = 0
        self._now = int(self._started["time"]) * 1000  # ns; the recorded clock may go backwards
        self._meter = Meter(policy.limits, policy.prices, lambda: self._now)
        self._open: dict[int, _Open] = {}
        self._labels = None if policy.flow == "off" else Labels(policy.flow, policy.labels)
        self._labelled = False  # whether any result carried one so far
        self._lost_labels = False  # whether one may have that can't be followed
        # Labels of results are recorded where something could ask for them.
        self._records_labels = bool(self._started.get("rules") or self._started.get("policy"))
        # A session that halts for an approval writes the call down as blocked: it is judged there.
        blocked = {_place(e) for e in events if e["event"] == "step.blocked"}
        asked = [e for e in events if e["event"] == "approval.requested"]
        self._pending = {e["id"] for e in asked if _place(e) not in blocked}
        self._pending -= {e["id"] for e in events if e["event"] == "approval.decided"}
        self._pending.difference_update(decided)
        calls = [e for e in events if e["event"] in CALLS]
        self._effects = {(e["name"], e["version"]): e["effect"] for e in calls}

    def take(self, event: Event, *, explain: int) -> Judged | None:
        """Go on by one event; a call is judged."""
        kind = event["event"]
        self._now = max(self._now, int(event["time"]) * 1000)
        if kind in CALLS:
            return self._judge(event, explain=explain)
        if kind == "approval.requested" and event["id"] in self._pending:
            return self._asked(event)
        if kind in ("step.finished", "step.resolved"):
            self._end(event["step"], event["outcome"], event.get("labels") or ())
        return None

    # --- a call ----------------------------------------------------------------------------------

    def _asked(self, event: Event) -> Judged:
        """A call that somebody was asked about, when the run ended; its effect was not recorded."""
        called = event["name"], event["version"]
        effect = self._effects.get(called) or self._contracts.effect_of(*called)
        judged = self._judge({**event, "effect": effect or "write"})
        return judged if effect else dataclasses.replace(judged, now=None, unknown=("tool.effect",))

    def _judge(self, event: Event, *, explain: int = 0) -> Judged:
        view, found, unknown = self._view(event)
        self._calls += 1
        was = verdict_of(event)
        step: int = event.get("step", 0)
        made = event["event"] in ("step.started", "step.replayed")
        if was.rule.startswith(_FACADE) and not made:
            apart = "the facade refused it"
            return Judged(step, event["time"], view, was, made, was, apart=apart)
        how = self._trial.explain if explain and step == explain else self._trial.decide
        tried = how(view, unknown)
        verdict = None if tried.verdict is None else found.explain(tried.verdict)
        ticket: Ticket | None = None
        if event.get("undoes") is None:  # what takes a step back is under no limit
            ticket, verdict = self._limited(event, view, verdict)
        if made:
            parent: int = event.get("parent") or 0
            self._open[step] = _Open(view.contract, view.kind, found, ticket, parent)
            if "outcome" in event:  # a recorded one stood for it
                self._end(step, event["outcome"], event.get("labels") or ())
        elif ticket is not None:  # it would run now: what it would use is not known
            runs = verdict is not None and verdict.decision == "allow"
            self._meter.end(ticket, made=runs, usage={})
        rules = tried.rules
        if verdict is None or tried.verdict is None or verdict.rule != tried.verdict.rule:
            rules = tuple(map(_not_deciding, rules))  # a limit does
        return Judged(step, event["time"], view, was, made, verdict, tried.unknown, rules=rules)

    def _limited(
        self, event: Event, view: StepView, verdict: Verdict | None
    ) -> tuple[Ticket | None, Verdict | None]:
        """What the limits say beside the policy, and what the call takes of them."""
        if verdict is not None and verdict.decision == "deny":
            return None, verdict
        place = event.get("branch", ""), event.get("parent"), event["turn"], event["slot"]
        ticket = self._meter.take(view, place)
        said = ticket.verdict
        if verdict is not None:
            verdict = ticket.over(verdict)
        elif said is not None and said.decision == "deny":
            verdict = said
        denied = verdict is not None and verdict.decision == "deny"
        allowed = verdict is not None and verdict.decision == "allow"
        begins = event["event"] == "step.started" or (allowed and event["event"] != "step.replayed")
        if begins and not denied:
            paced = ticket.pace()
            if paced is not None:
                verdict, denied = paced, True
        if denied:
            self._meter.end(ticket, made=False)
            return None, verdict
        return ticket, verdict

    def _view(self, event: Event) -> tuple[StepView, Found, Unknown]:
        contract, fields = self._contracts.of(event)
        data, missing = arguments_of(event, self._get_blob, redacted=self._redacted)
        unknown: dict[str, frozenset[str]] = {}
        if fields:
            unknown["tool"] = fields
        if missing:
            unknown["args"] = missing
        found = NO_LABELS
        if self._labels is not None:
            found = self._labels.of(data, encoded=True)
            hidden = self._labelled and (bool(missing) or holds_secret(data))
            if self._lost_labels or hidden:
                unknown["labels"] = frozenset({""})
        spent = self._meter.spent
        figures = Figures(
            id=self._started["run"],
            name=self._started["name"],
            calls=self._calls,
            tokens=spent.tokens,
            cost=spent.cost,
            elapsed=max(0, event["time"] - self._started["time"]) / 1e6,
        )
        view = StepView(
            kind=event["kind"],
            contract=contract,
            args=data,  # as they are recorded
            agent=event.get("agent", ""),
            branch=event.get("branch", ""),
            calls=self._calls,
            data=data | dict.fromkeys(missing),  # no condition that asks for them is evaluated
            key=event["key"],
            run=figures,
            labels=found.labels,
        )
        return view, found, unknown

    # --- its end ---------------------------------------------------------------------------------

    def _end(self, step: int, outcome: Event, recorded: Iterable[str]) -> None:
        call = self._open.pop(step, None)
        if call is None:
            return
        status = outcome["status"]
        if call.ticket is not None:
            self._meter.end(
                call.ticket,
                made=status != "not_started",
                failed=status == "error",
                usage=outcome.get("usage"),
            )
        if self._labels is not None and status in ("ok", "error"):
            self._note(self._labels, step, call, outcome, recorded)

    def _note(
        self, labels: Labels, step: int, call: _Open, outcome: Event, recorded: Iterable[str]
    ) -> None:
        """What a call's result carries into later ones."""
        known = self._records_labels or self._contracts.knows(call.contract) or call.kind == "model"
        carried = labels.carried(call.contract, call.kind, call.found, recorded)
        carried |= labels.inside(step)
        if not known:
            self._lost_labels = True  # its contract may declare some, and nobody wrote them down
        if not carried:
            return
        self._labelled = True
        try:
            value = self._value(outcome)
        except (ValueError, StoreError):
            self._lost_labels = True
            return
        streamed = call.kind == "model" and isinstance(value, list)
        labels.note(
            step,
            call.contract.name,
            carried,
            value,
            found=call.found,
            streamed=streamed,
            parent=call.parent,
        )

    def _value(self, outcome: Event) -> Any:
        """What a call gave, as data.

        Raises:
            ValueError: some of it is not in the trace.
            StoreError: it is large, and not there.
        """
        if outcome["status"] == "error":
            if self._redacted and not is_whole(outcome["error"]):
                raise ValueError("redacted")
            return decode_exception(outcome["error"], ())
        value = outcome["value"]
        if type(value) is dict and value.get(TAG) == "blob":
            value = orjson.loads(self._get_blob(str(value.get("sha256"))))
        if outcome.get("lossy") or holds_secret(value) or not is_whole(value):
            raise ValueError("not whole")
        return decode(value, framework=_NO_FRAMEWORK)
