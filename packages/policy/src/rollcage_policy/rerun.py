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
from rollcage import Contract
from rollcage.errors import StoreError
from rollcage.gate import (
    NO_LABELS,
    FoundLabels,
    Labels,
    Resolver,
    Spent,
    StepView,
    Verdict,
    holds_secret,
)
from rollcage.trace import TAG, AskedApproval, Run, Step, decode, decode_exception

from rollcage_policy.meter import Meter, Ticket
from rollcage_policy.policy import Policy
from rollcage_policy.recorded import (
    Contracts,
    Figures,
    Unknown,
    arguments_of,
    is_whole,
    user_input_in,
    verdict_of,
)
from rollcage_policy.trial import Explained, Trial

__all__ = ["Judged", "Rerun"]

Event = Mapping[str, Any]
_ASKED_FOR: Final = ("kind", "name", "version", "args", "key", "turn", "slot", "time", "verdict")
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
        user_input: used in place of the user input that is recorded with each run.
        resolver: see `Trial`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        tools: Iterable[Contract] = (),
        user_input: str | Iterable[str] | None = None,
        resolver: Resolver | bool = False,
    ) -> None:
        self.policy = policy
        self._user_input = user_input
        self._resolver = resolver
        self._trial = Trial(policy, user_input=user_input, resolver=resolver)
        self._contracts = Contracts(tools)
        self.spent: Spent | None = None  # in the run that was looked at last, by its end

    def over(
        self,
        run: Run,
        get_blob: Callable[[str], bytes],
        *,
        explain: int = 0,
        decided: Collection[str] = (),
    ) -> Iterator[Judged]:
        """What the policy says of each call of a run, in the order of the recording.

        Args:
            run: as its trace tells (`rollcage.trace.read_run`).
            get_blob: gives a large value; StoreError where it can't.
            explain: the number of a step for which it says what each rule came to.
            decided: the ids of requests for approval that were decided in other runs, which are
                looked at as well: their calls are counted there.

        Raises:
            ContractError: a call of a tool with a name that no tool can have.
        """
        trial = self._trial
        texts = user_input_in(run.started, get_blob) if self._user_input is None else None
        if texts is not None:
            trial = Trial(self.policy, user_input=texts, resolver=self._resolver)
        replayed = _Replayed(self.policy, trial, self._contracts, run, get_blob)
        calls = {step.line: step for step in run.steps if step.kind != "branch"}
        ends = {step.ended_line: step for step in calls.values() if step.ended_line is not None}
        asked = {each.line: each.request for each in _pending(run, decided)}
        for line in sorted([*calls, *ends, *asked]):
            if line in calls:
                yield replayed.judge(calls[line], explain=explain)
            elif line in ends:
                replayed.end(ends[line])
            else:
                yield replayed.asked(asked[line])
        self.spent = replayed.spent


def _pending(run: Run, decided: Collection[str]) -> Iterator[AskedApproval]:
    """The requests for approval that nobody has decided anywhere, and whose call is not judged yet.

    A session that halts for an approval writes the call down as blocked: it is judged there.
    """
    blocked = {(s.key, s.branch, s.turn, s.slot) for s in run.steps if s.state == "blocked"}
    for each in run.approvals:
        said = each.request
        if each.decision is not None or said["id"] in decided:
            continue
        if (said["key"], said.get("branch", ""), said["turn"], said["slot"]) not in blocked:
            yield each


def _not_deciding(explained: Explained) -> Explained:
    evaluation = dataclasses.replace(explained.evaluation, decides=False)
    return dataclasses.replace(explained, evaluation=evaluation)


@dataclasses.dataclass(slots=True)
class _Open:
    """A call that has begun, and what it takes until it ends."""

    contract: Contract
    kind: str
    found: FoundLabels
    ticket: Ticket | None
    parent: int


class _Replayed:
    """One run, as far as it was followed."""

    def __init__(
        self,
        policy: Policy,
        trial: Trial,
        contracts: Contracts,
        run: Run,
        get_blob: Callable[[str], bytes],
    ) -> None:
        self._policy = policy
        self._trial = trial
        self._contracts = contracts
        self._get_blob = get_blob
        self._started = run.started
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
        calls = [step for step in run.steps if step.kind != "branch"]
        self._effects = {(step.name, step.version): step.effect for step in calls}

    @property
    def spent(self) -> Spent:
        """What the calls have used up by now."""
        return self._meter.spent

    # --- a call ----------------------------------------------------------------------------------

    def asked(self, request: Event) -> Judged:
        """A call that somebody was asked about, when the run ended; its effect was not recorded."""
        called = request["name"], request["version"]
        effect = self._effects.get(called) or self._contracts.effect_of(*called)
        shown = {field: request[field] for field in _ASKED_FOR}
        agent, branch = request.get("agent", ""), request.get("branch", "")
        judged = self.judge(
            Step(
                **shown,
                step=0,
                effect=effect or "write",
                agent=agent,
                branch=branch,
                parent=None,
                state="blocked",
            )
        )
        return judged if effect else dataclasses.replace(judged, now=None, unknown=("tool.effect",))

    def judge(self, step: Step, *, explain: int = 0) -> Judged:
        """A call begins: what the policy says of it."""
        self._now = max(self._now, step.time * 1000)
        view, found, unknown = self._view(step)
        self._calls += 1
        was = verdict_of(step)
        made = step.state != "blocked"
        if was.rule.startswith(_FACADE) and not made:
            apart = "the facade refused it"
            return Judged(step.step, step.time, view, was, made, was, apart=apart)
        how = self._trial.explain if explain and step.step == explain else self._trial.decide
        tried = how(view, unknown)
        verdict = None if tried.verdict is None else found.explain(tried.verdict)
        ticket: Ticket | None = None
        if step.undoes is None:  # what undoes a step is under no limit
            ticket, verdict = self._limited(step, view, verdict, made=made)
        if made:
            opened = _Open(view.contract, view.kind, found, ticket, step.parent or 0)
            self._open[step.step] = opened
            if step.origin is not None:  # a recorded outcome stood for it
                self.end(step)
        elif ticket is not None:  # it would run now: what it would use is not known
            runs = verdict is not None and verdict.decision == "allow"
            self._meter.end(ticket, made=runs, usage={})
        rules = tried.rules
        if verdict is None or tried.verdict is None or verdict.rule != tried.verdict.rule:
            rules = tuple(map(_not_deciding, rules))  # a limit does
        return Judged(step.step, step.time, view, was, made, verdict, tried.unknown, rules=rules)

    def _limited(
        self, step: Step, view: StepView, verdict: Verdict | None, *, made: bool
    ) -> tuple[Ticket | None, Verdict | None]:
        """What the limits say beside the policy, and what the call takes of them."""
        if verdict is not None and verdict.decision == "deny":
            return None, verdict
        place = step.branch, step.parent, step.turn, step.slot
        ticket = self._meter.take(view, place)
        said = ticket.verdict
        if verdict is not None:
            verdict = ticket.over(verdict)
        elif said is not None and said.decision == "deny":
            verdict = said
        denied = verdict is not None and verdict.decision == "deny"
        allowed = verdict is not None and verdict.decision == "allow"
        begins = step.origin is None and (made or allowed)
        if begins and not denied:
            paced = ticket.pace()
            if paced is not None:
                verdict, denied = paced, True
        if denied:
            self._meter.end(ticket, made=False)
            return None, verdict
        return ticket, verdict

    def _view(self, step: Step) -> tuple[StepView, FoundLabels, Unknown]:
        contract, fields = self._contracts.of(step)
        data, missing = arguments_of(step, self._get_blob, redacted=self._redacted)
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
            elapsed=max(0, step.time - self._started["time"]) / 1e6,
        )
        view = StepView(
            kind=step.kind,
            contract=contract,
            args=data,  # as they are recorded
            agent=step.agent,
            branch=step.branch,
            calls=self._calls,
            data=data | dict.fromkeys(missing),  # no condition that asks for them is evaluated
            key=step.key,
            run=figures,
            labels=found.labels,
        )
        return view, found, unknown

    # --- its end ---------------------------------------------------------------------------------

    def end(self, step: Step) -> None:
        """A call that ran has ended, or a recorded outcome stands for it."""
        outcome = step.outcome or {}
        if step.ended is not None:
            self._now = max(self._now, step.ended * 1000)
        call = self._open.pop(step.step, None)
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
            self._note(self._labels, step.step, call, outcome, step.labels)

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
