"""The backtest of a policy on a recorded run: its verdict on each call. No tool runs.

The calls come in their recorded order, each at its recorded time, with its usage and outcome. The
agent is assumed to behave as recorded. So the limits count the recorded calls
that this policy allows, and the calls that only this policy allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
from rollcage import Contract
from rollcage.errors import StoreError
from rollcage.gate import StepView, Verdict, holds_secret
from rollcage.trace import TAG, decode, decode_exception
from rollcage_views import RefusedCall, Run, Step

from rollcage_policy.addresses import Resolver
from rollcage_policy.labels import NO_LABELS, FoundLabels, Labels
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
from rollcage_policy.tally import Spent
from rollcage_policy.trial import Explained, Trial

__all__ = ["Judged", "Rerun"]

Event = Mapping[str, Any]
_FACADE: Final = "facade "  # the prefix of the rule in a facade's refusal
_NO_FRAMEWORK: Final = "-"  # values are restored as neutral data: no adapter's code runs


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A recorded call, with the policy's verdict on it.

    Attributes:
        step: its number; 0 if the call was refused, and never became a step.
        time: the time of recording (Unix, µs).
        view: the call, as the policy sees it.
        was: the recorded verdict.
        made: whether the call ran or was replayed in the run.
        now: the policy's verdict; None if it depends on something unknown.
        unknown: unknown values that rules use: `tool.risk`, `args.password`, ….
        apart: why the policy does not decide about the call, if it does not; then `now` equals
            `was`.
        rules: the evaluation of each rule, if requested.
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
        """Return whether the decision differs; None if unknown."""
        return None if self.now is None else self.now.decision != self.was.decision


class Rerun:
    """Run a policy on recorded runs, one after the other.

    Args:
        policy: the policy.
        tools: the contracts of today's tools, for fields that the trace lacks (risk, permissions,
            …). A current tool replaces the recorded tool with the same name, version and effect.
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
        self.spent: Spent | None = None  # the usage of the last run

    def over(
        self,
        run: Run,
        get_blob: Callable[[str], bytes],
        *,
        explain: int = 0,
    ) -> Iterator[Judged]:
        """Yield the policy's verdict on each call of a run, in recorded order.

        Args:
            run: the run, from its log (`rollcage_views.read_run`).
            get_blob: returns a large value; raises StoreError if it can't.
            explain: the number of a step for which each rule's evaluation is included.

        Raises:
            ContractError: a call of a tool whose name is not a valid tool name.
        """
        trial = self._trial
        texts = user_input_in(run.started, get_blob) if self._user_input is None else None
        if texts is not None:
            trial = Trial(self.policy, user_input=texts, resolver=self._resolver)
        replayed = _Replayed(self.policy, trial, self._contracts, run, get_blob)
        for _, _, _, is_end, step in sorted(_moments(run), key=lambda each: each[:4]):
            if is_end:
                replayed.end(step)
            else:
                yield replayed.judge(step, explain=explain)
        self.spent = replayed.spent


_Moment = tuple[int, int, int, bool, Step]
"""The sort key of calls: the attempt, the time, the line, and whether the call ends."""


def _moments(run: Run) -> Iterator[_Moment]:
    """Yield when calls began and ended; a call that changes nothing has one line for both."""
    asked = {each.request["step"]: each.request for each in run.approvals if each.request}
    for each in run.steps:
        step, request = each, asked.get(each.step)
        if step.kind == "branch":
            continue
        if step.state == "waiting":
            if request is None:
                continue  # its place is kept for a call that is to be made again
            step = dataclasses.replace(step, verdict=request["verdict"])
        yield step.attempt, step.time, step.line, False, step
        if step.ended_line is not None:
            ended = max(step.time, step.ended or 0)
            yield step.attempt, ended, step.ended_line, True, step
    for call in run.refused:
        if call.key:  # a guard decided on it
            yield call.attempt, call.time, call.line, False, _as_step(call)


def _as_step(call: RefusedCall) -> Step:
    """Return a denied call, which has no step, in the form of a step."""
    return Step(
        step=0,
        kind=call.kind,
        name=call.name,
        version=call.version,
        effect="read" if call.effect == "model" else call.effect,
        args=call.args,
        key=call.key,
        turn=call.turn or 0,
        slot=call.slot or 0,
        branch=call.branch,
        agent=call.agent,
        parent=call.parent,
        time=call.time,
        state="blocked",
        verdict=call.verdict,
        line=call.line,
    )


def _not_deciding(explained: Explained) -> Explained:
    evaluation = dataclasses.replace(explained.evaluation, decides=False)
    return dataclasses.replace(explained, evaluation=evaluation)


@dataclasses.dataclass(slots=True)
class _Open:
    """A call that has begun, and its reservation until it ends."""

    contract: Contract
    kind: str
    found: FoundLabels
    ticket: Ticket | None
    parent: int


class _Replayed:
    """One run, up to the last call that was read."""

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
        self._labelled = False  # whether any result carried a label so far
        self._lost_labels = False  # whether a result may have carried a label that is not recorded
        # Labels of results are recorded only if something in the run could use them.
        self._records_labels = bool(self._started.get("rules") or self._started.get("policy"))

    @property
    def spent(self) -> Spent:
        """What the calls have used so far."""
        return self._meter.spent

    # --- a call ----------------------------------------------------------------------------------

    def judge(self, step: Step, *, explain: int = 0) -> Judged:
        """Judge a call that begins."""
        self._now = max(self._now, step.time * 1000)
        view, found, unknown = self._view(step)
        self._calls += 1
        was = verdict_of(step)
        made = step.state not in ("blocked", "waiting")
        if was.rule.startswith(_FACADE) and not made:
            apart = "the facade refused it"
            return Judged(step.step, step.time, view, was, made, was, apart=apart)
        how = self._trial.explain if explain and step.step == explain else self._trial.decide
        tried = how(view, unknown)
        verdict = None if tried.verdict is None else found.explain(tried.verdict)
        ticket: Ticket | None = None
        if step.undoes is None:  # calls that undo a step are under no limit
            ticket, verdict = self._limited(step, view, verdict, made=made)
        if made:
            opened = _Open(view.contract, view.kind, found, ticket, step.parent or 0)
            self._open[step.step] = opened
            if step.origin is not None:  # the call was answered with a recorded outcome
                self.end(step)
        elif ticket is not None:  # the call would run now, and its usage is unknown
            runs = verdict is not None and verdict.decision == "allow"
            self._meter.end(ticket, made=runs, usage={})
        rules = tried.rules
        if verdict is None or tried.verdict is None or verdict.rule != tried.verdict.rule:
            rules = tuple(map(_not_deciding, rules))  # a limit does
        return Judged(step.step, step.time, view, was, made, verdict, tried.unknown, rules=rules)

    def _limited(
        self, step: Step, view: StepView, verdict: Verdict | None, *, made: bool
    ) -> tuple[Ticket | None, Verdict | None]:
        """Return the combined verdict of policy and limits, and the call's reservation."""
        if verdict is not None and verdict.decision == "deny":
            return None, verdict
        place = step.branch, step.parent, step.turn, step.slot
        ticket = self._meter.take(view, place)
        limited = ticket.verdict
        if verdict is not None:
            verdict = ticket.over(verdict)
        elif limited is not None and limited.decision == "deny":
            verdict = limited
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
            data=data | dict.fromkeys(missing),  # no condition that uses them is evaluated
            key=step.key,
            run=figures,
            labels=found.labels,
        )
        return view, found, unknown

    # --- its end ---------------------------------------------------------------------------------

    def end(self, step: Step) -> None:
        """End a call that ran or was replayed."""
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
        """Note the labels that a call's result carries into later calls."""
        known = self._records_labels or self._contracts.knows(call.contract) or call.kind == "model"
        carried = labels.carried(call.contract, call.kind, call.found, recorded, step)
        if not known:
            self._lost_labels = True  # its contract may declare labels that were not recorded
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
        """Return the result of a call, as data.

        Raises:
            ValueError: a part of it is not in the trace.
            StoreError: the result is large, and its blob is missing.
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
