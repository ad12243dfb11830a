"""What is kept of a write for its undo, and how its outcome is found out: parts of flows.

The user's own functions (`observe`, `undo`, `probe`) are called here, after the call was admitted
and around its body. A failure before the effect refuses the call; one after it is logged.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Generator, Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage.contract.arguments import Arguments
from rollcage.contract.contract import Contract
from rollcage.errors import CaptureFailed, ContractError
from rollcage.gate import Terms, Verdict
from rollcage.replay.path import Entry
from rollcage.step.call import OpenStep, Progress
from rollcage.step.requests import (
    Consult,
    Flow,
    GetBlob,
    Note,
    PutBlob,
    Raised,
    Request,
    Returned,
)
from rollcage.undo.compensation import (
    Captured,
    DidNotHappen,
    Digests,
    Happened,
    KnownTools,
    PlannedCall,
    Tool,
    differing,
    digests_of,
    plan_from,
    states_of,
)
from rollcage.values.codec import TAG, tagged
from rollcage.values.decoding import decode
from rollcage.values.exceptions import describe_error
from rollcage.values.hiding import Seal
from rollcage.values.registered import REGISTERED, Types

__all__ = [
    "LARGE", "Part", "Setting", "capture", "keep", "keep_large", "keep_request", "observed",
    "plan_late", "probed", "revived", "settled_marks",
]  # fmt: skip

_log: Final = logging.getLogger("rollcage")

LARGE: Final = 64 * 1024  # bytes of JSON from which a value is kept as a blob


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What the flows of one session share.

    Attributes:
        seal: makes the HMAC that replaces a secret.
        barrier: wait for the store before a write runs, and before its outcome counts.
        root: the first run of the lineage.
        tools: those that plans can name.
        undo_orphans: makes the flow that undoes recorded effects before a new write leaves them
            behind, from them and whether it can await; it gives what is left of them, as text.
        decide: the verdict on a call; asked for again after an approver has approved it.
        terms: under which approvals count now.
        allow: refuses a tool that was not approved to undo something: it raises.
        types: that recorded values come back as, of any tool.
        at: what a command line needs to find the store.
        run: the session's own.
        epoch: how often the lineage was undone down to some step before the session's run began.
    """

    seal: Seal
    barrier: bool
    root: str
    tools: KnownTools
    undo_orphans: Callable[[tuple[Entry, ...], bool], Generator[Request, Any, str]]
    decide: Callable[[Progress], Verdict]
    terms: Callable[[], Terms] = Terms
    allow: Callable[[Tool], None] = lambda _: None
    types: Types = REGISTERED
    at: str = ""
    run: str = ""
    epoch: int = 0

    def types_of(self, contract: Contract) -> Types:
        """The types that recorded values of this tool come back as."""
        return Types((), contract.types, self.types)


class _Stopped(Exception):
    """An interrupt that came while a user's function was called."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


Part = Generator[Request, Any, Any]


def observed(
    contract: Contract, arguments: Mapping[str, Any], seal: Seal, after: OpenStep | None = None
) -> Generator[Request, Any, dict[str, Any] | Raised]:
    """The states that a call changes, as they are now: by resource, encoded; or what went wrong."""
    assert contract.observe is not None
    answer: Returned | Raised = yield Consult(
        contract.observe, f"observe of {contract.name}", (dict(arguments),), after=after
    )
    if isinstance(answer, Raised):
        return answer
    try:
        return states_of(answer.value, seal)
    except ContractError as error:
        return Raised(error)


def revived(encoded: Mapping[str, Any]) -> Generator[Request, Any, dict[str, Any]]:
    """Recorded states or arguments with their large values; ValueError if one is gone."""
    whole: dict[str, Any] = {}
    for name, value in encoded.items():
        if isinstance(value, dict) and value.get(TAG) == "blob":
            blob: bytes | Raised = yield GetBlob(value["sha256"])
            if isinstance(blob, Raised):
                raise ValueError(str(blob.error))
            whole[name] = orjson.loads(blob)
        else:
            whole[name] = value
    return whole


def keep(data: bytes) -> Generator[Request, Any, dict[str, Any]]:
    """Keep a large value as a blob; the reference to it."""
    digest = sha256(data).hexdigest()
    yield PutBlob(digest, data)
    return {**tagged("blob", None), "sha256": digest, "size": len(data)}


def on_record(event: dict[str, Any]) -> Flow:
    """Write the line of a call that was refused; large arguments are kept as blobs."""
    if TAG not in event["args"]:
        event["args"] = yield from keep_large(event["args"])
    yield Note(event)
    return Returned(None)


def keep_large(values: Mapping[str, Any]) -> Generator[Request, Any, dict[str, Any]]:
    """The values as a line holds them: large ones as blobs."""
    shown = dict(values)
    for name, value in values.items():
        data = orjson.dumps(value)
        if len(data) >= LARGE:
            shown[name] = yield from keep(data)
    return shown


def keep_request(arguments: Arguments) -> Generator[Request, Any, dict[str, Any]]:
    """A model's request as a line holds it: each large message is a blob of its own.

    The next request repeats that message, not the whole list.
    """
    values: dict[str, Any] = orjson.loads(arguments.digest_input)
    if len(arguments.digest_input) < LARGE:
        return values
    messages = values.get("messages")
    if not isinstance(messages, list):
        return (yield from keep_large(values))
    every: list[Any] = messages
    kept: list[Any] = []
    for each in every:
        data = orjson.dumps(each)
        kept.append((yield from keep(data)) if len(data) >= LARGE else each)
    rest = yield from keep_large({n: v for n, v in values.items() if n != "messages"})
    return {name: kept if name == "messages" else rest[name] for name in values}


def _shown(plan: list[PlannedCall]) -> Generator[Request, Any, list[dict[str, Any]]]:
    made: list[dict[str, Any]] = []
    for each in plan:
        args = yield from keep_large(each.args)
        made.append({**each.as_data(), "args": args})
    return made


# --- before the effect ---------------------------------------------------------------------------


def capture(
    progress: Progress, entry: Entry | None, setting: Setting
) -> Generator[Request, Any, BaseException | None]:
    """Keep what the undo of a call needs; an interrupt that came meanwhile is given back.

    If a recorded step runs again in its place, the state before it is that before the first run.
    """
    try:
        captured = yield from _captured(progress, entry, setting)
    except _Stopped as stopped:
        return stopped.error
    except Exception as error:  # noqa: BLE001 - the user's own functions may raise anything
        message = f"{type(error).__name__}: {error}"
        refused = CaptureFailed(
            f"{progress.call.contract.name} can't be prepared for undo, so it did not run: "
            f"{message}"
        )
        refused.__cause__ = error
        progress.prepared = progress.prepared._replace(refused=refused)
    else:
        progress.prepared = progress.prepared._replace(captured=captured)
    return None


def _captured(
    progress: Progress, entry: Entry | None, setting: Setting
) -> Generator[Request, Any, Captured]:
    call = progress.call
    contract, arguments = call.contract, call.arguments.values
    states: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    old = None if entry is None else entry.undo
    again = old is not None and "before" in old
    if again and entry is not None and entry.status == "unknown" and not _did_not_happen(progress):
        assert old is not None
        states = yield from revived(old["before"])
    elif contract.observe is not None:
        now = yield from observed(contract, arguments, setting.seal)
        if isinstance(now, Raised):
            if isinstance(now.error, Exception):
                raise now.error
            raise _Stopped(now.error)
        states = now
        if again and old is not None and old.get("after") == digests_of(now):
            states = yield from revived(old["before"])
    if contract.observe is not None:
        marks["before"] = yield from keep_large(states)
    before = {resource: decode(state) for resource, state in states.items()}
    if contract.undo is not None and call.undoes is None:
        if "result" in contract.undo_words:
            marks["reversible"] = True
        else:
            plan = _plan(contract, {"args": dict(arguments), "before": before}, setting)
            if plan is not None:
                marks["plan"] = yield from _shown(plan)
                marks["reversible"] = True
    return Captured(before, marks)


def _did_not_happen(progress: Progress) -> bool:
    answer = progress.prepared.probe
    return answer is not None and answer.happened is False


def _plan(contract: Contract, known: dict[str, Any], setting: Setting) -> list[PlannedCall] | None:
    assert contract.undo is not None
    words = {word: known[word] for word in contract.undo_words}
    return plan_from(contract.undo(**words), setting.tools, setting.seal, setting.allow)


# --- after it -----------------------------------------------------------------------------------


def settled_marks(
    step: OpenStep, answer: Returned | Raised, setting: Setting
) -> Generator[Request, Any, tuple[dict[str, Any], BaseException | None]]:
    """What `step.finished` says for the undo, and an interrupt that came while it was found out."""
    call = step.call
    contract, captured = call.contract, step.captured
    assert captured is not None
    marks: dict[str, Any] = {}
    interrupt: BaseException | None = None
    if contract.observe is not None:
        now = yield from observed(contract, call.arguments.values, setting.seal, after=step)
        if not isinstance(now, Raised):
            marks["after"] = digests_of(now)
        elif isinstance(now.error, Exception):
            text = describe_error(now.error, setting.seal)
            _log.error("the state after %s can't be observed: %s", contract.name, text)
        else:
            interrupt = now.error
    if isinstance(answer, Returned) and call.undoes is None:
        late = yield from plan_late(
            contract, call.arguments.values, captured.before, answer.value, setting
        )
        marks |= late
    return marks, interrupt


def plan_late(
    contract: Contract,
    arguments: Mapping[str, Any],
    before: Mapping[str, Any],
    result: Any,
    setting: Setting,
) -> Generator[Request, Any, dict[str, Any]]:
    """The plan of a call that has happened, if that needed its result."""
    if contract.undo is None or "result" not in contract.undo_words:
        return {}
    known = {"args": dict(arguments), "before": before, "result": result}
    try:
        plan = _plan(contract, known, setting)
    except Exception as error:  # noqa: BLE001 - logged: the effect is out there already
        text = describe_error(error, setting.seal)
        _log.error("the undo of %s can't be planned: %s", contract.name, text)
        return {}
    if plan is None:
        return {"plan": None}
    return {"plan": (yield from _shown(plan))}


# --- what became of it ---------------------------------------------------------------------------


def probed(
    contract: Contract,
    arguments: Mapping[str, Any],
    key: str,
    undo: Mapping[str, Any] | None,
    seal: Seal,
) -> Generator[Request, Any, Happened | DidNotHappen | str | BaseException]:
    """Ask a tool what became of a call; otherwise why that is unknown, or an interrupt.

    Its probe is asked first; then the observed state is compared with the one before.
    """
    before: dict[str, Any] | None = None
    if undo is not None and "before" in undo:
        try:
            before = yield from revived(undo["before"])
        except ValueError as error:
            return f"the earlier state is gone: {error}"
    message = "its tool declares no probe"
    if contract.probe is not None:
        plain = {r: decode(state) for r, state in (before or {}).items()}
        known = {"args": dict(arguments), "key": key, "before": plain}
        words = {word: known[word] for word in contract.probe_words}
        answer: Returned | Raised = yield Consult(
            contract.probe, f"probe of {contract.name}", words=words
        )
        if isinstance(answer, Returned):
            if isinstance(answer.value, Happened | DidNotHappen):
                return answer.value
            if answer.value is not None:  # True may mean either: the state is not asked then
                given = type(answer.value).__name__
                return f"its probe gave {given}, and not Happened, DidNotHappen or None"
            message = "its probe does not know"
        elif isinstance(answer.error, Exception):
            message = f"its probe failed: {type(answer.error).__name__}: {answer.error}"
        else:
            return answer.error
    if contract.observe is None or before is None:
        return message
    now = yield from observed(contract, arguments, seal)
    if isinstance(now, Raised):
        failed = f"its state can't be observed: {type(now.error).__name__}: {now.error}"
        return failed if isinstance(now.error, Exception) else now.error
    was: Digests = digests_of(before)
    if not differing(was, digests_of(now)):
        return DidNotHappen()
    return f"{message}, and the state is not as it was before"
