"""Labels of a run: recorded with each outcome, and restored by every resume.

The labels of a result stand in its line (`labels`), so a resumed run also knows the labels of
results that are not requested again. Inner sessions share the labels of their outer run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import orjson
from rollcage import Stage
from rollcage.calls.stage import Work
from rollcage.errors import StoreError
from rollcage.replay.matching import find_match

from rollcage_policy.labels import NO_LABELS, FlowMode, FoundLabels, Labels, LabelSource
from rollcage_policy.leaves import Leaves, leaves

if TYPE_CHECKING:
    from rollcage import Contract, Session
    from rollcage.calls.attempt import Attempt
    from rollcage.replay.call import Call, Match
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["Labelling", "RunLabels", "labels_of_run"]

_BLOB: Final = b'"$rollcage":"blob"'
_OURS: Final = b'"type":"rollcage.'
_FOUND: Final = "labels of the arguments"
_INSIDE: Final = "labels from inside"


class RunLabels:
    """The labelled results of a run, from its log and as they come.

    Args:
        attempt: the attempt at the run.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.labels = Labels()
        self._attempt = weakref.ref(attempt)  # weak: labels don't keep it alive
        self._store = attempt.store
        self._lock = attempt.lock
        self._noted: set[tuple[str, int, frozenset[str]]] = set()
        self._large: list[tuple[str, Callable[[Any], None]]] = []  # to be read before they count
        for step in attempt.run.steps.values():
            if step.marks is not None and "labels" in step.marks and step.outcome is not None:
                self.note(step.n, step.name, frozenset(step.marks["labels"]), step.outcome)

    def is_of(self, attempt: Attempt) -> bool:
        """Return whether the labels belong to this attempt."""
        return self._attempt() is attempt

    @property
    def pending(self) -> bool:
        """Return whether a large result has to be read from the store first."""
        return bool(self._large)

    def everywhere(self) -> None:
        """Make all later calls carry the labels of every labelled result, past and future."""
        self.labels.carry_everywhere()

    def note(
        self,
        n: int,
        name: str,
        labels: frozenset[str],
        outcome: bytes,
        *,
        found: FoundLabels = NO_LABELS,
        streamed: bool | None = None,
        run: str = "",
    ) -> None:
        """Index the result, or the error, of a step.

        Args:
            n: its number.
            name: the name of its tool or model.
            labels: the labels of the result.
            outcome: as recorded.
            found: the labels of the arguments.
            streamed: whether a list holds a stream's chunks; None if unknown.
            run: the id of its run, if it is another one.
        """
        if (run, n, labels) in self._noted:
            return
        self._noted.add((run, n, labels))
        earlier = {each.label: each.source for each in reversed(found.origins)}
        inherited = next((earlier[each] for each in sorted(labels) if each in earlier), None)
        source = LabelSource(n, name, inherited and (inherited.earlier or inherited))
        self._index(labels, source, n, outcome, streamed=streamed)

    def note_earlier(self, source: LabelSource, labels: frozenset[str], outcome: bytes) -> None:
        """Index the result, or the error, of a step in an earlier run of the conversation."""
        if (source.run, source.number, labels) not in self._noted:
            self._noted.add((source.run, source.number, labels))
            self._index(labels, source, (source.run, source.number), outcome, streamed=None)

    def note_lost(self, run: str, labels: frozenset[str]) -> None:
        """Make all later calls carry the labels of a run whose results are gone."""
        source = LabelSource(0, "pruned", run=run)
        self.labels.learn(labels, source, lambda: _leaves(_Unseen(), streamed=False), run, 0)

    def _index(
        self,
        labels: frozenset[str],
        source: LabelSource,
        call: object,
        outcome: bytes,
        *,
        streamed: bool | None,
    ) -> None:
        def learn(value: Any) -> None:
            self.labels.learn(labels, source, lambda: _leaves(value, streamed=streamed), call, 0)

        recorded = orjson.loads(outcome)
        if recorded["status"] != "ok":
            if _OURS in outcome:
                return  # the text of such an error is not the tool's own
            error = recorded["error"]
            learn([error.get("message"), error.get("args")])
        elif _BLOB in outcome and recorded["value"].get("$rollcage") == "blob":
            self._large.append((recorded["value"]["sha256"], learn))
        else:
            learn(recorded["value"])

    def read(self, *, is_async: bool) -> Work:
        """Read the large results that have labels."""
        while self._large:
            digest, learn = self._large[0]
            get = functools.partial(self._store.get, "blobs", digest)
            try:
                data = yield functools.partial(asyncio.to_thread, get) if is_async else get
            except StoreError:
                data = None
            with self._lock:
                if self._large and self._large[0][0] == digest:
                    del self._large[0]
                    learn(_Unseen() if data is None else orjson.loads(data))


class _Unseen:
    """A value that can't be inspected: everything later carries its labels."""

    __slots__ = ()


_of_attempts: Final[weakref.WeakKeyDictionary[Attempt, RunLabels]] = weakref.WeakKeyDictionary()


def labels_of_run(attempt: Attempt) -> RunLabels:
    """Return the labels of an attempt's run, the same for all stages that track them."""
    found = _of_attempts.get(attempt)
    if found is None:
        found = _of_attempts[attempt] = RunLabels(attempt)
    return found


class Labelling(Stage):
    """Make labels follow the values of results into later calls, and show them to rules.

    A contract declares the labels of its results (`tool(labels=["untrusted"])`). A policy brings
    this stage along; a session whose gate has only rules gets it by `stages=[Labelling()]`.

    Args:
        flow: `value`: labels follow the values of a result; `run`: all later calls carry them.
        declared: the labels of results, by globs over the names of tools and models, besides the
            labels in their contracts.
    """

    def __init__(
        self, flow: FlowMode = "value", declared: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._flow = flow
        self._declared = {glob: tuple(labels) for glob, labels in (declared or {}).items()}
        self._of_name: dict[str, frozenset[str]] = {}
        self._run: RunLabels | None = None
        self._cached: dict[tuple[int, int], tuple[Session, Contract, frozenset[str]]] = {}

    def opened(self, session: Session) -> None:
        """Learn the recorded labels."""
        self._run = labels_of_run(session.attempt)
        if self._flow == "run":
            self._run.everywhere()

    def prepare(self, call: Call, match: Match) -> Work | None:  # noqa: ARG002 - of a hit as well
        """Read large results that have labels, before the final decision on any call."""
        run = self._run
        return run.read(is_async=call.is_async) if run is not None and run.pending else None

    def shows(self, call: Call) -> Mapping[str, Any] | None:
        """Return the labels of a call's arguments."""
        return {"labels": self.found(call).labels}

    def marks(self, call: Call) -> Event | None:
        """Return the labels of a result from another source; a stream's labels hold from now on."""
        if call.supplied is None:
            if call.streams and self._run is not None:
                carried = self._carried(call)
                if carried:
                    self._run.labels.begin(call.event["step"], call.contract.name, carried)
            return None
        return self._written(call, call.supplied)

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:
        """Return the labels of a result, for its line."""
        if call is None or self._run is None:
            return None
        if step is None:
            if call.kept is None and not self._declared_of(call):
                return None
            return self._written(call, outcome)
        if step.marks is None and not self._declared_of(call):
            return None
        known = frozenset((step.marks or {}).get("labels", ()))
        carried = known | self._declared_of(call)  # it may have been recorded without a policy
        if carried:
            _pass_on(call, carried)
            if carried != known or not self._run.is_of(call.attempt):
                self._run.note(
                    step.n, step.name, carried, outcome.data,
                    streamed=call.streams, run=self._foreign(call),
                )  # fmt: skip
        return None

    def found(self, call: Call) -> FoundLabels:
        """Return the labels of a call's arguments in the current round."""
        run = self._run
        if run is None or not run.labels.any:
            return NO_LABELS
        found = run.labels.of(call.values)
        if found.labels and call.slot >= 0 and run.is_of(call.attempt):
            found = _before(call, found)
        call.keep(_FOUND, found)
        return found

    def labels_of(self, contract: Contract) -> frozenset[str]:
        """Return the declared labels of the results of a tool or model."""
        found = self._of_name.get(contract.name)
        if found is None:
            found = self._of_name[contract.name] = frozenset(
                label
                for glob, labels in self._declared.items()
                if fnmatchcase(contract.name, glob)
                for label in labels
            )
        return found

    def _carried(self, call: Call) -> frozenset[str]:
        """Return the labels of a result: declared, of its arguments, of the calls in its body.

        A model's answer carries none of its arguments' labels: the arguments are the whole
        conversation, so the answer would carry every label.
        """
        carried, kept = self._declared_of(call), call.kept
        if kept is not None:
            found = kept.get(_FOUND)
            if found is not None and call.kind != "model":
                carried |= found.labels
            carried |= kept.get(_INSIDE, frozenset())
        return carried

    def _declared_of(self, call: Call) -> frozenset[str]:
        """Return the labels that the contract and the sessions' policies declare for a result."""
        session, contract = call.session, call.contract
        known = self._cached.get((id(session), id(contract)))
        if known is not None:
            return known[2]
        carried = frozenset(contract.labels)
        for each in session.stages:
            if isinstance(each, Labelling):
                carried |= each.labels_of(contract)
        self._cached[id(session), id(contract)] = (
            session,
            contract,
            carried,
        )  # kept alive: the id stays unique
        return carried

    def _foreign(self, call: Call) -> str:
        """Return the run of a call in an inner session with its own run; else an empty text."""
        assert self._run is not None
        return "" if self._run.is_of(call.attempt) else call.attempt.run.id

    def _written(self, call: Call, outcome: Outcome) -> Event | None:
        run = self._run
        if run is None:
            return None
        carried, n, streamed = self._carried(call), call.event["step"], call.streams
        if not carried:
            return None
        _pass_on(call, carried)
        if not (streamed and outcome.status != "ok"):  # a broken stream's labels stay
            found = (call.kept or {}).get(_FOUND, NO_LABELS)
            run.note(
                n, call.contract.name, carried, outcome.data,
                found=found, streamed=streamed, run=self._foreign(call),
            )  # fmt: skip
        return {"labels": sorted(carried)}


def _leaves(value: Any, *, streamed: bool | None) -> Leaves:
    """Return the leaves of a recorded result; for a possible stream, of both readings."""
    if streamed is not None or not isinstance(value, list):
        return leaves(value, streamed=bool(streamed), encoded=True)
    one, other = leaves(value, encoded=True), leaves(value, streamed=True, encoded=True)
    return Leaves(
        [*one.texts, *other.texts], [*one.numbers, *other.numbers], one.whole and other.whole
    )


def _pass_on(call: Call, carried: frozenset[str]) -> None:
    """Add labels to the result of the enclosing call, too."""
    place = call.place
    while place.around is None and place.session.entered_at is not None:
        place = place.session.entered_at  # the session has a run of its own
    around = place.around
    if around is not None:
        around.keep(_INSIDE, (around.kept or {}).get(_INSIDE, frozenset()) | carried)


def _before(call: Call, found: FoundLabels) -> FoundLabels:
    """Return the labels that a replayed call had when it was recorded, from earlier steps."""
    match = find_match(call.attempt, call)
    if match.kind != "hit" or match.step is None:
        return found
    origins = tuple(
        each for each in found.origins if each.source.run or each.source.number < match.step.n
    )
    if len(origins) == len(found.origins):
        return found
    labels = frozenset(each.label for each in origins)
    arguments = {
        name: kept
        for name in found.arguments
        if (kept := frozenset(each.label for each in origins if each.argument in ("", name)))
    }
    return dataclasses.replace(found, labels=labels, origins=origins, arguments=arguments)
