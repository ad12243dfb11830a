"""Answer calls from the recording alone, or halt, and report the findings.

Nothing is written. Recorded verdicts count: a call that was blocked then is blocked again, and the
verdict of today's gate is reported beside the answer. `verify` runs pure and read tools again, and
compares their results.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from rollcage.calls.flow import collected, inside, run_body, surrounded
from rollcage.calls.stage import Stage, Work
from rollcage.errors import Blocked, Halt, SessionHalted
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import here
from rollcage.replay.outcome import failure, success

if TYPE_CHECKING:
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["Checked", "Offline", "Report", "Verify"]

NOT_COMPARABLE: Final = "not comparable: recorded writes came after this read"
_WORDS: Final = ("reason", "code", "rule", "remedy")
_SORTED: Final = orjson.OPT_SORT_KEYS


@dataclasses.dataclass(slots=True)
class Checked:
    """Describe a recorded step that answered a call.

    Attributes:
        step: the number in the run.
        name: the name of the tool or model.
        drift: how the new result differs from the recorded one, or why they can't be compared;
            empty without a difference, or if the tool did not run.
        verdict: the verdict of today's gate, unless it is to allow.
    """

    step: int
    name: str
    drift: str = ""
    verdict: Verdict | None = None


@dataclasses.dataclass(slots=True)
class Report:
    """Report the findings of an attempt that writes nothing.

    Attributes:
        run: the id of the run that was read.
        steps: the recorded steps that answered calls, in the order of the answers.
        blocked: how many calls were blocked on record.
        halted: the message of the halt at which recording and program part; empty without one.
        unasked: the numbers of recorded steps that nothing asked for; known at the end.
    """

    run: str = ""
    steps: list[Checked] = dataclasses.field(default_factory=list[Checked])
    blocked: int = 0
    halted: str = ""
    unasked: tuple[int, ...] = ()

    @property
    def drifted(self) -> list[Checked]:
        """Return the steps with a different result now."""
        return [each for each in self.steps if each.drift not in ("", NOT_COMPARABLE)]


@dataclasses.dataclass(slots=True)
class _Block:
    """Hold a recorded block of a call.

    Attributes:
        after: the last step before the block.
        verdict: why the call was blocked.
        attempt: the number of the attempt with the call, from 1.
    """

    after: int
    verdict: Event
    attempt: int


class Offline(Stage):
    """Answer from the recording alone, and keep the report."""

    def __init__(self) -> None:
        self.report = Report()
        self._last = self._attempts = 0
        self._blocks: defaultdict[tuple[str, str], list[_Block]] = defaultdict(list)
        self._by_step: dict[int, Checked] = {}
        self._denied: dict[int, Event] = {}  # by step, the verdict that a person's no makes
        self.folds = {
            "attempt": self._attempt, "step": self._step, "refused": self._refused,
            "decided": self._decided,
        }  # fmt: skip
        self._is_open = False

    def _attempt(self, _: Event) -> None:
        self._attempts += 1

    def _step(self, line: Event) -> None:
        self._last = max(self._last, line["step"])
        self._made_anew(line)

    def _refused(self, line: Event) -> None:
        if "key" in line and line.get("step") not in self._denied and not self._is_open:
            self._made_anew(line)
            block = _Block(self._last, line["verdict"], self._attempts)
            self._blocks[line["branch"], line["key"]].append(block)

    def _made_anew(self, line: Event) -> None:
        """Forget a block of an earlier attempt: this attempt's result counts."""
        blocks = self._blocks.get((line["branch"], line["key"]))
        if blocks and blocks[0].attempt < self._attempts:
            del blocks[0]

    def _decided(self, line: Event) -> None:
        """Treat a person's rejection as a block: a kill may have come before the refusal."""
        if line["decision"] in ("rejected", "refused"):
            self._denied[line["step"]] = {
                "reason": line["reason"] or "the call was not approved",
                "code": line.get("code") or "approval_rejected",
            }

    def opened(self, session: Session) -> None:
        """Begin the report."""
        run = session.attempt.run
        self.report.run = run.id
        for n, verdict in self._denied.items():
            step = run.steps[n]
            blocks = self._blocks[step.branch, step.key]
            blocks.append(_Block(n, verdict, 0))
            blocks.sort(key=lambda block: block.after)
        self._is_open = True

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Block a call that was blocked on record at this place."""
        blocks = self._blocks.get((call.place.branch, call.key))
        if blocks:
            step = match.step if match.kind == "hit" else None
            if step is None or blocks[0].after < step.n:
                block = blocks.pop(0)
                self.report.blocked += 1
                call.attempt.stats.blocked += 1
                call.verdict = verdict = _denial(block.verdict)
                raise Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
        return None

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:  # noqa: ARG002 - the seam's
        """Note the step that answered a call."""
        if call is not None and step is not None:
            checked = Checked(step.n, step.name, verdict=call.today)
            self._by_step[step.n] = checked
            self.report.steps.append(checked)

    def closed(self, session: Session, error: BaseException | None) -> None:  # noqa: ARG002 - the seam's
        """End the report."""
        attempt = session.attempt
        self.report.unasked = attempt.run.unasked()
        if attempt.halted is not None:
            self.report.halted = str(attempt.halted)


def _denial(verdict: Event) -> Verdict:
    """Return the recorded denial."""
    reason, code, rule, remedy = (verdict.get(name, "") for name in _WORDS)
    return Verdict("deny", reason, code, rule, remedy)


class Verify(Offline):
    """Run pure and read tools again beside the recording, and compare the results."""

    def __init__(self) -> None:
        super().__init__()
        self._last_write = 0

    def opened(self, session: Session) -> None:
        """Find the last write that was not undone."""
        super().opened(session)
        self._last_write = max(
            (
                step.n
                for step in session.attempt.run.steps.values()
                if step.effect == "write"
                and step.status != "waiting"
                and step.gone in ("", "left")
                and not (step.rolled or step.compensates or step.answered)
            ),
            default=0,
        )

    def hit(self, call: Call, step: Step) -> Work | None:
        """Run a pure or read tool again, if its results can be compared."""
        if call.kind != "tool" or call.effect not in ("pure", "read") or step.answered:
            return None
        if call.effect == "read" and step.n < self._last_write:
            self._by_step[step.n].drift = NOT_COMPARABLE
            return None
        return self._again(call, step)

    def _again(self, call: Call, step: Step) -> Work:
        attempt, contract = call.attempt, call.contract
        call.event = {
            "step": step.n, "fingerprint": step.fingerprint, "effect": step.effect,
        }  # fmt: skip
        call.is_on_record = True
        fresh: Outcome
        try:
            with _inside(call), surrounded(call):
                value = yield run_body(attempt, call)
                if contract.streams or hasattr(value, "__next__") or hasattr(value, "__anext__"):
                    value = yield collected(value)
        except (Halt, SessionHalted):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises now is compared
            fresh = failure(contract, error, attempt.seal, attempt.types, unclear=False)
        else:
            fresh = success(contract, value, attempt.seal, attempt.types)
        self._by_step[step.n].drift = drift(step.result, orjson.loads(fresh.data))


def drift(was: Event, now: Event) -> str:
    """Return how an outcome differs from the recorded one; empty if it does not."""
    if now["status"] == "error":
        if was["status"] == "error" and _same(was["error"], now["error"]):
            return ""
        return f"it now raises {now['error']['type']}: {now['error']['message']}"
    if was.get("drift") != now.get("drift"):
        if "drift" not in now:
            return "its output now keeps its contract"
        broken = now["drift"]
        return f"it now breaks its contract ({broken['code']} at {broken['path']})"
    if was["status"] == "error" or not _same(was["value"], now["value"]):
        return "it now gives another value"
    return ""


def _same(was: Any, now: Any) -> bool:
    """Tell whether two encoded values are equal; a blob is known by its hash."""
    if isinstance(was, dict) and was.get("$rollcage") == "blob":
        from hashlib import sha256

        return bool(was["sha256"] == sha256(orjson.dumps(now)).hexdigest())
    return orjson.dumps(was, option=_SORTED) == orjson.dumps(now, option=_SORTED)


@contextmanager
def _inside(call: Call) -> Iterator[None]:
    token = here.set(inside(call.attempt, call))
    try:
        yield
    finally:
        here.reset(token)
