"""Information flow: which labels the arguments of a call carry, and from which step (DESIGN §5).

A tool's contract, or the policy, says which labels its results carry (`untrusted`, `secret`, a
user's own). They follow a value into the arguments of later calls; the results of such a call carry
them on. It is found by what the values are, so it finds copies: what a model has put in other words
it can't find. Where it can't tell, everything later carries the labels.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

from rollcage.contract.contract import Contract
from rollcage.gate.leaves import Leaves, leaves
from rollcage.gate.sightings import LabelSource, Sightings
from rollcage.gate.verdict import Verdict

__all__ = ["NO_LABELS", "FlowMode", "FoundLabels", "LabelOrigin", "LabelSource", "Labels"]

FlowMode = Literal["value", "run"]
"""`value`: labels follow the values of a result; `run`: all later calls of the run carry them."""

MOST_KEPT: Final = 8_000_000
"""Characters and sixteenfold entries that are kept of labelled results in one run."""

_NONE: Final[frozenset[str]] = frozenset()
_MOST_SETS: Final = 64  # of labels that come together


class LabelOrigin(NamedTuple):
    """Where an argument has a label from.

    Attributes:
        label: which.
        argument: the argument's name; empty where all of the call has it.
        source: the step.
    """

    label: str
    argument: str
    source: LabelSource

    def __str__(self) -> str:
        """`argument 'to' is derived from step 3 (fetch_page): untrusted`."""
        if self.argument:
            return f"argument {self.argument!r} is derived from {self.source}: {self.label}"
        return f"it comes after {self.source}: {self.label}"


@dataclasses.dataclass(frozen=True, slots=True)
class FoundLabels:
    """The labels of a call's arguments.

    Attributes:
        labels: all of them.
        origins: for each argument and label, where it is from: the step that was found first.
        arguments: the labels by argument, of those that have any.
    """

    labels: frozenset[str] = frozenset()
    origins: tuple[LabelOrigin, ...] = ()
    arguments: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict[str, frozenset[str]]
    )

    @property
    def because(self) -> str:
        """The steps that the labels are from, in words; empty where there is none."""
        told = dict.fromkeys(map(str, self.origins))
        return "; ".join(list(told)[:_TOLD])

    def and_those_of(self, other: FoundLabels) -> FoundLabels:
        """Both together."""
        if not other.labels or not self.labels:
            return self if self.labels else other
        names = {*self.arguments, *other.arguments}
        none: frozenset[str] = frozenset()
        return FoundLabels(
            self.labels | other.labels,
            tuple(dict.fromkeys((*self.origins, *other.origins))),
            {n: self.arguments.get(n, none) | other.arguments.get(n, none) for n in names},
        )

    def explain(self, verdict: Verdict) -> Verdict:
        """A refusal, or a question, that tells which earlier step taints the call."""
        if verdict.decision == "allow" or not self.origins:
            return verdict
        reason = f"{verdict.reason.rstrip('.')} ({self.because})"
        return dataclasses.replace(verdict, reason=reason)


_TOLD: Final = 3
NO_LABELS: Final = FoundLabels()


class Labels:
    """What a run knows of labelled values; it may be asked from any thread.

    Args:
        mode: see `FlowMode`.
        declared: labels that a policy gives to results, by globs over the names of tools and
            models, beside what their contracts say.
        most: how much is kept; beyond that everything later carries the labels.
    """

    def __init__(
        self,
        mode: FlowMode = "value",
        declared: Mapping[str, Sequence[str]] | None = None,
        *,
        most: int = MOST_KEPT,
    ) -> None:
        self.mode: FlowMode = mode
        self._declared = dict(declared or {})
        self._most = most
        self._of_name: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._seen: dict[frozenset[str], Sightings] = {}
        self._first: dict[str, LabelSource] = {}  # by label, the first step whose result had it
        self._everywhere: dict[str, LabelSource] = {}  # labels that all calls have
        # The streams that are being read.
        self._open: dict[object, tuple[frozenset[str], LabelSource]] = {}
        self._around: Labels | None = None  # of the session around
        self._opener = 0  # the step there whose body has opened this one
        self._inside: dict[int, dict[str, LabelSource]] = {}  # by step, what calls of its body had

    def within(self, around: Labels, step: int) -> Labels:
        """Know what the session around knows, and tell it what is learnt here.

        Args:
            around: its labels.
            step: the number of the step there whose body has opened this session; 0: of none.
        """
        self._around, self._opener = around, step
        return self

    # --- what results carry ----------------------------------------------------------------------

    def declared(self, contract: Contract) -> frozenset[str]:
        """The labels that the results of a tool or model carry, by its contract and the policy."""
        found = self._of_name.get(contract.name)
        if found is None:
            found = frozenset(
                label
                for pattern, labels in self._declared.items()
                if fnmatchcase(contract.name, pattern)
                for label in labels
            )
            self._of_name[contract.name] = found
        if self._around is not None:
            found |= self._around.declared(contract)
        return found.union(contract.labels) if contract.labels else found

    def carried(
        self, contract: Contract, kind: str, found: FoundLabels, recorded: Iterable[str] = ()
    ) -> frozenset[str]:
        """The labels of a call's result: declared, recorded, and those of its arguments.

        A model's answer has those that are declared of the model: all that it was shown is in its
        arguments, so it would carry everything.
        """
        carried = self.declared(contract)
        if recorded:
            carried = carried.union(recorded)
        return carried | found.labels if found.labels and kind != "model" else carried

    def inside(self, number: int) -> frozenset[str]:
        """The labels that results had which the body of step `number` got from its own calls."""
        if not self._inside:
            return _NONE
        with self._lock:
            return frozenset(self._inside.get(number, ()))

    # --- noting ----------------------------------------------------------------------------------

    def note(
        self,
        number: int,
        name: str,
        labels: frozenset[str],
        value: Any,
        *,
        found: FoundLabels = NO_LABELS,
        streamed: bool = False,
        parent: int = 0,
    ) -> None:
        """A call has ended with a labelled value, live or recorded; an error is one, too.

        Args:
            number: of its step.
            name: of its tool or model.
            labels: those of the value; see `carried`.
            value: what it gave, or the exception that it raised.
            found: the labels of its arguments.
            streamed: the value is the list of a stream's chunks.
            parent: the step whose body made the call; its result carries the labels as well.
        """
        inner: dict[str, LabelSource] = {}
        if self._inside:
            with self._lock:
                inner = self._inside.pop(number, inner)
        if not labels:
            return
        earlier = {each.label: each.source for each in reversed(found.origins)} | inner
        source = _source(number, name, labels, earlier)
        self.learn(labels, source, lambda: leaves(value, streamed=streamed), number, parent)

    def learn(
        self,
        labels: frozenset[str],
        source: LabelSource,
        seen: Callable[[], Leaves],
        call: object,
        parent: int,
    ) -> None:
        """Keep what a call gave; so does the session around."""
        found = seen() if self.mode == "value" else None
        with self._lock:
            self._open.pop(call, None)
            self._keep(labels, source, found)
            if parent:
                above = self._inside.setdefault(parent, {})
                for label in labels:
                    above.setdefault(label, source)
        if self._around is not None:
            self._around.learn(labels, source, seen, (id(self), call), self._opener)

    def _keep(self, labels: frozenset[str], source: LabelSource, seen: Leaves | None) -> None:
        for label in labels:
            self._first.setdefault(label, source)
        known = self._seen.get(labels)
        size = sum(each.size for each in self._seen.values())
        if (
            seen is None
            or not seen.whole
            or size > self._most
            or (known is None and len(self._seen) >= _MOST_SETS)
        ):
            for label in labels:
                self._everywhere.setdefault(label, source)
            return
        if known is None:
            known = self._seen[labels] = Sightings()
        known.add(seen, source)

    def begin(self, number: int, name: str, labels: frozenset[str]) -> None:
        """A labelled stream is being read: until it is noted, all calls carry its labels."""
        if labels:
            self.open_stream(number, labels, LabelSource(number, name))

    def open_stream(self, call: object, labels: frozenset[str], source: LabelSource) -> None:
        """See `begin`; `call` names the stream, in this session or in one inside of it."""
        with self._lock:
            self._open[call] = labels, source
            for label in labels:
                self._first.setdefault(label, source)
        if self._around is not None:
            self._around.open_stream((id(self), call), labels, source)

    # --- asking ----------------------------------------------------------------------------------

    def of(self, arguments: Mapping[str, Any], *, encoded: bool = False) -> FoundLabels:
        """The labels of a call's arguments, as its body will get them, or as they are recorded.

        Args:
            arguments: by name.
            encoded: they are in the trace's own encoding.
        """
        own = self._of(arguments, encoded=encoded) if self._first else NO_LABELS
        if self._around is None:
            return own
        return own.and_those_of(self._around.of(arguments, encoded=encoded))

    def _of(self, arguments: Mapping[str, Any], *, encoded: bool) -> FoundLabels:
        with self._lock:
            everywhere = dict(self._everywhere)
            for labels, source in self._open.values():
                for label in labels:
                    everywhere.setdefault(label, source)
            origins = [LabelOrigin(label, "", each) for label, each in sorted(everywhere.items())]
            by_argument: dict[str, frozenset[str]] = {}
            if self._seen:
                for name, value in arguments.items():
                    found = self._of_value(name, value, encoded=encoded)
                    if found:
                        by_argument[name] = frozenset(each.label for each in found)
                        origins += [each for each in found if each.label not in everywhere]
        labels = frozenset(everywhere).union(*by_argument.values())
        return FoundLabels(labels, tuple(origins), by_argument) if labels else NO_LABELS

    def _of_value(self, name: str, value: Any, *, encoded: bool) -> list[LabelOrigin]:
        """Where one argument has its labels from; all labels where it can't be inspected."""
        if value is None or isinstance(value, bool):
            return []
        wanted = leaves(value, encoded=encoded)
        found: dict[str, LabelSource] = {} if wanted.whole else dict(self._first)
        for labels, seen in self._seen.items():
            if labels <= found.keys():
                continue
            source = seen.find(wanted)
            if source is not None:
                for label in labels:
                    found.setdefault(label, source)
        return [LabelOrigin(label, name, each) for label, each in sorted(found.items())]


def _source(
    number: int, name: str, labels: frozenset[str], earlier: Mapping[str, LabelSource]
) -> LabelSource:
    """A step as a source; where a label of it comes from an earlier one, with that."""
    inherited = next((earlier[label] for label in sorted(labels) if label in earlier), None)
    return LabelSource(number, name, inherited and (inherited.earlier or inherited))
