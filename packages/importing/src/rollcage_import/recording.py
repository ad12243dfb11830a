"""Write foreign traces as logs of imported runs, which no session continues."""

from __future__ import annotations

import contextvars
import dataclasses
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson
from rollcage import (
    Clock,
    Contract,
    NotReplayableWarning,
    Options,
    ReplayedError,
    Store,
    open_store,
)
from rollcage.errors import ContractError, RunNotFound
from rollcage.session.imports import FORMAT, Chain, Event, Session, uuid7
from rollcage.trace.seal import StoreSeal
from rollcage_adapter import (
    HALTED,
    NOT_RECORDED,
    REFUSED,
    Answer,
    model_contract,
    model_request,
)
from rollcage_policy import DetectedSecrets

from rollcage_import.attempts import ImportedAttempt, put_lines, scratch_store
from rollcage_import.files import Format, Unreadable, read_spans
from rollcage_import.spans import Span
from rollcage_import.trees import SpanStep, Tree, trees

__all__ = ["ImportedRun", "Imports", "import_file"]

_ANY: Final[Mapping[str, Any]] = {"type": "object"}
_UNNAMED: Final = "imported"
_LONGEST: Final = 200  # characters of a name
_CLEAN: Final = (ReplayedError,)  # an error that a call raised elsewhere does not stop the import
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]{0,150}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class ImportedRun:
    """A trace that is a run now, or was one before.

    Attributes:
        run: the run's id, the same whenever the trace is imported.
        name: the job's name.
        trace: the id of the original trace.
        steps: how many steps it has; None for an earlier import.
        skipped: how many of its spans became no step, by reason.
        there: whether it had been imported before, and was not changed.
    """

    run: str
    name: str
    trace: str
    steps: int | None
    skipped: dict[str, int]
    there: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Imports:
    """The result of an import.

    Attributes:
        format: the format of the file.
        runs: by their beginning.
        skipped: the parts that are in no run, by reason.
    """

    format: Format
    runs: list[ImportedRun]
    skipped: dict[str, int]


def import_file(
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,  # noqa: A002 - what it is
    name: str | None = None,
    store: str | os.PathLike[str] | Store = "./.rollcage",
    tools: Iterable[Contract] = (),
) -> Imports:
    """Import each trace of a file as a run. An earlier import of a trace is not changed.

    The runs contain only the data of their source: their effects are unknown, so no session resumes
    one and nothing is undone. They are for reading, offline replay, forks, backtests and tests of
    policies.

    Args:
        path: OTLP (JSON or protobuf), or an export of Langfuse or LangSmith (JSON, JSON lines).
        format: its format; detected by default.
        name: the name of the job; by default the name of the agent in each trace.
        store: the store of the runs.
        tools: contracts that declare more of tools than a trace does: their effect, and the check
            of
            their arguments. Any other tool is a `write`, like every undeclared one.

    Raises:
        Unreadable: the file can't be read, is too large, or of no known format.
        DetectorMissing: the library that finds credentials is not installed.
        StoreError: the store can't be written; RunInUse if another process imports the same.
    """
    skipped: Counter[str] = Counter()
    found, spans = read_spans(Path(path), format, skipped)
    if not spans:
        raise Unreadable(
            f"{path} holds no span" + "".join(f"; {why}: {n}" for why, n in skipped.items())
        )
    declared = {each.name: _bodiless(each) for each in tools}
    runs: list[ImportedRun] = []
    kept = open_store(store)
    for tree in trees(spans):
        if tree.steps:
            recording = _Recording(found, tree, kept, declared)
            # An enclosing session neither decides about these calls nor observes them.
            runs.append(contextvars.Context().run(recording.write, name))
        else:
            skipped += tree.skipped
            skipped["an agent that made no step"] += tree.top is not None
    return Imports(found, runs, dict(skipped))


class _Recording:
    """One run, as it is written: its clock tells the times of the spans."""

    def __init__(
        self, format_: Format, tree: Tree, store: Store, declared: Mapping[str, Contract]
    ) -> None:
        self._format: Format = format_
        self._tree = tree
        self._store = store
        self._declared = declared
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._refused: Counter[str] = Counter()
        self._now = tree.start
        self._attempt = 0

    def write(self, name: str | None) -> ImportedRun:
        """Write it, unless the store has it.

        Raises:
            RunInUse: another process is importing it.
        """
        tree = self._tree
        clock = self._clock()
        run = uuid7(clock.wall() // 1_000_000, clock.random(10))
        there = self._there(run)
        if there is not None:
            return there
        named = _name(name or (_job(tree.top) if tree.top else "") or _UNNAMED)
        # It is made aside and put into the store as a whole, because no session completes a partial
        # one.
        with scratch_store() as made:
            log = Chain(made.open(run))
            log.append(self._begins(run, named))
            session = ImportedAttempt(named, self._store, Options(clock=clock))
            line: Event = {
                "event": "attempt", "id": clock.random(12).hex(), "time": tree.start // 1000,
            }  # fmt: skip
            session.begin(log, line, (DetectedSecrets(),))
            self._perform(session)
            lines = made.read(run)
        if not put_lines(self._store, run, lines):  # another process has imported it meanwhile
            there = self._there(run)
            assert there is not None
            return there
        skipped = dict(tree.skipped + self._refused)
        return ImportedRun(run, named, tree.trace, session.stats.calls, skipped)

    def _there(self, run: str) -> ImportedRun | None:
        """Return the run, if it was imported before."""
        try:
            begins = orjson.loads(self._store.ends(run).first)
        except RunNotFound:
            return None
        tree = self._tree
        return ImportedRun(run, begins["name"], tree.trace, None, dict(tree.skipped), there=True)

    def _begins(self, run: str, name: str) -> Event:
        """Return the first line: the origin, and the keyed digest of the data that was read."""
        tree = self._tree
        content = "\n".join(sorted(repr(dataclasses.astuple(s)) for s in _spans(tree.steps)))
        content = content.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        imported: dict[str, Any] = {
            "format": self._format, "trace": tree.trace, "digest": StoreSeal(self._store)(content),
        }  # fmt: skip
        if tree.skipped:
            imported["skipped"] = dict(tree.skipped)
        return {
            "event": "run", "format": FORMAT, "run": run, "name": name, "time": tree.start // 1000,
            "imported": imported,
        }  # fmt: skip

    def _clock(self) -> Clock:
        """Return a clock that tells the times of the spans, and the same ids each time."""
        seed = f"rollcage import|{self._format}|{self._tree.trace}"
        return Clock(
            wall=lambda: self._now,
            monotonic=lambda: self._now,
            random=lambda size: sha256(seed.encode("utf-8", "replace")).digest()[:size],
        )

    def _perform(self, session: ImportedAttempt) -> None:
        """Make the calls, each with a body that only returns the recorded result."""
        tree = self._tree
        error = None if tree.top is None else tree.top.error
        raised = None if error is None else _raised(error)
        try:
            with warnings.catch_warnings():
                # its steps are marked themselves
                warnings.simplefilter("ignore", NotReplayableWarning)
                self._steps(session, tree.steps)
            self._now = tree.end
        except BaseException as failed:
            session.__exit__(type(failed), failed, None)
            raise
        session.__exit__(None if raised is None else type(raised), raised, None)

    # --- steps -----------------------------------------------------------------------------------

    def _steps(self, session: Session, steps: list[SpanStep]) -> None:
        for step in steps:
            span = step.span
            self._now = span.start
            where = session.place(
                turn=step.turn, slot=step.slot, agent=span.agent[:_LONGEST],
                call_id=span.call_id[:_LONGEST],
            )  # fmt: skip
            try:
                with where:
                    self._step(session, step)
            except HALTED:
                raise
            except (*REFUSED, ContractError) as error:
                self._refused[f"refused: {error.code}"] += 1
            except ReplayedError:
                pass  # its own; the agent continued, or its end says otherwise

    def _step(self, session: Session, step: SpanStep) -> None:
        span = step.span
        contract = self._contract(span)
        arguments = _arguments(span)
        if span.refused:
            code = _ERROR.match(span.refused)
            reason = code.group() if code else "refused"
            session.refused(contract, arguments, reason=span.refused, code=reason)
            return

        def body(**_: Any) -> Any:
            self._steps(session, step.inside)
            self._now = max(span.start, span.end or span.start)
            if span.error is not None:
                raise _raised(span.error)
            if span.end is None:
                raise ReplayedError("Unfinished", "the span has no end")
            return _pieces(span) if span.kind == "model" else span.result

        if span.kind == "model":
            session.run_call(contract, arguments, body, kind="model", answer=_answer_of(span))
        else:
            session.run_call(contract, arguments, body)

    def _contract(self, span: Span) -> Contract:
        name = _name(span.name or span.kind)
        declared = self._declared.get(name) if span.kind == "tool" else None
        if declared is not None and _fits(declared, span):
            return declared
        made = self._contracts.get((span.kind, name))
        if made is None:
            if span.kind == "model":
                made = model_contract(name, "")
            else:
                effect = "scope" if span.kind == "agent" else span.effect
                made = Contract(name=name, parameters=_ANY, effect=effect, raises=_CLEAN)
            self._contracts[span.kind, name] = made
        return made


def _fits(contract: Contract, span: Span) -> bool:
    """Return whether a declared tool accepts the recorded arguments.

    Another version of it may have run.
    """
    return span.args is not NOT_RECORDED and not contract.takes.why_not(_arguments(span), str)


def _arguments(span: Span) -> dict[str, Any]:
    if span.kind == "model":
        asked = [NOT_RECORDED] if span.args is NOT_RECORDED else span.args
        return model_request(asked, options={})
    if span.kind == "agent":
        return {}
    return span.args if isinstance(span.args, dict) else {"input": span.args}


def _pieces(span: Span) -> Any:
    """Return a model's answer without a framework's value: its neutral form."""
    return NOT_RECORDED if span.answer is None else [span.answer.as_data()]


def _answer_of(span: Span) -> Callable[[Any], Answer]:
    return lambda _: span.answer or Answer()


def _bodiless(contract: Contract) -> Contract:
    """Return a tool's contract without its functions: an import never calls the application."""
    return dataclasses.replace(
        contract, undo=None, observe=None, probe=None, returns=None, json_output=False,
        max_output=None, allow_empty=True, on_drift=None, function=None, once="", raises=_CLEAN,
    )  # fmt: skip


def _raised(error: tuple[str, str]) -> ReplayedError:
    kind = _ERROR.fullmatch(error[0])
    return ReplayedError(kind.group() if kind else "Error", error[1])


def _job(top: Span) -> str:
    return top.name if top.kind == "agent" else top.title


def _name(given: str) -> str:
    """Return a name that can be recorded: one line of moderate length."""
    return " ".join(given.encode("utf-8", "replace").decode().split())[:_LONGEST] or _UNNAMED


def _spans(steps: Iterable[SpanStep]) -> Iterable[Span]:
    left = list(steps)
    while left:
        step = left.pop()
        yield step.span
        left += step.inside
