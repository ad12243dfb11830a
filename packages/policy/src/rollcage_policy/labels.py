"""Information flow: which labels the arguments of a call carry, and from which step (DESIGN §5).

A tool's contract, or the policy, declares the labels of its results (`untrusted`, `secret`, a
user's own). The labels follow a value into the arguments of later calls, and on into the results of
those calls. Values are compared by content: copies are found, rephrased text is not. If a
value can't be tracked, everything later carries its labels.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

from rollcage import Contract
from rollcage.gate import Verdict

from rollcage_policy.leaves import Leaves, leaves
from rollcage_policy.sightings import LabelSource, Sightings

__all__ = ["NO_LABELS", "FlowMode", "FoundLabels", "LabelOrigin", "LabelSource", "Labels"]

FlowMode = Literal["value", "run"]
"""`value`: labels follow the values of a result; `run`: all later calls of the run carry them."""

MOST_KEPT: Final = 8_000_000
"""The size limit of what one run indexes: characters, plus sixteen for each entry."""

_MOST_SETS: Final = 64  # different combinations of labels


class LabelOrigin(NamedTuple):
    """The origin of an argument's label.

    Attributes:
        label: the label.
        argument: the argument's name; empty if the whole call has the label.
        source: the step that it comes from.
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
        origins: for each argument and label, its origin: the step that was found first.
        arguments: the labels by argument, for arguments that have any.
    """

    labels: frozenset[str] = frozenset()
    origins: tuple[LabelOrigin, ...] = ()
    arguments: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=dict[str, frozenset[str]]
    )

    @property
    def because(self) -> str:
        """Return the steps from which the labels come, in words; empty without labels."""
        origins = dict.fromkeys(map(str, self.origins))
        return "; ".join(list(origins)[:_MOST_NAMED])

    def and_those_of(self, other: FoundLabels) -> FoundLabels:
        """Return the union of both sets of labels."""
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
        """Return the verdict, with the earlier steps that taint the call added to its reason."""
        if verdict.decision == "allow" or not self.origins:
            return verdict
        reason = f"{verdict.reason.rstrip('.')} ({self.because})"
        return dataclasses.replace(verdict, reason=reason)


_MOST_NAMED: Final = 3
NO_LABELS: Final = FoundLabels()


class Labels:
    """The labelled values of a run. Thread-safe.

    Args:
        mode: see `FlowMode`.
        declared: the labels that a policy adds to results, by globs over the names of tools and
            models, besides the labels in their contracts.
        most: the size limit of the index; beyond it everything later carries the labels.
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
        self._everywhere: dict[str, LabelSource] = {}  # labels that all calls carry
        # The streams that are being read.
        self._open: dict[object, tuple[frozenset[str], LabelSource]] = {}
        self._around: Labels | None = None  # the labels of the enclosing session
        self._opener = 0  # the enclosing session's step whose body opened this session
        self._inside: dict[int, dict[str, LabelSource]] = {}  # by step, the labels in its body

    def within(self, around: Labels, step: int) -> Labels:
        """Share labelled values with the enclosing session, both ways.

        Args:
            around: the labels of the enclosing session.
            step: the number of the enclosing session's step whose body opened this session; 0:
                none.
        """
        self._around, self._opener = around, step
        return self

    @property
    def any(self) -> bool:
        """Return whether any value has a label."""
        return bool(self._first) or self._around is not None

    def carry_everywhere(self) -> None:
        """Make all later calls carry every label, including the labels of earlier results."""
        with self._lock:
            self.mode = "run"
            for label, source in self._first.items():
                self._everywhere.setdefault(label, source)

    # --- the labels of results -------------------------------------------------------------------

    def declared(self, contract: Contract) -> frozenset[str]:
        """Return the declared labels of a tool's or model's results, by contract and policy."""
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
        self,
        contract: Contract,
        kind: str,
        found: FoundLabels,
        recorded: Iterable[str] = (),
        number: int = 0,
    ) -> frozenset[str]:
        """Return a result's labels: declared, recorded, of its arguments, of its own calls.

        A model's answer carries none of its arguments' labels: the arguments are the whole
        conversation, so the answer would carry every label.

        Args:
            contract: the contract of the tool or model.
            kind: `tool` or `model`.
            found: the labels of the arguments.
            recorded: the labels of the recorded step that answers the call.
            number: the number of its step; results of calls in its body count, too.
        """
        carried = self._of_name.get(contract.name)
        if carried is None or contract.labels or self._around is not None:
            carried = self.declared(contract)
        if recorded:
            carried = carried.union(recorded)
        if found.labels and kind != "model":
            carried |= found.labels
        return carried | self.inside(number) if self._inside else carried

    def inside(self, number: int) -> frozenset[str]:
        """Return the labels of the results of the calls in the body of step `number`."""
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
        """Index the labelled value of a call that has ended, live or replayed; or its error.

        Args:
            number: the number of its step.
            name: the name of its tool or model.
            labels: the labels of the value; see `carried`.
            value: its result, or the exception that it raised.
            found: the labels of its arguments.
            streamed: whether the value is the list of a stream's chunks.
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
        """Index the value of a call, here and in the enclosing session."""
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
        """Start reading a labelled stream: until it is noted, all calls carry its labels."""
        if labels:
            self.open_stream(number, labels, LabelSource(number, name))

    def open_stream(self, call: object, labels: frozenset[str], source: LabelSource) -> None:
        """See `begin`; `call` identifies the stream, in this session or in one inside it."""
        with self._lock:
            self._open[call] = labels, source
            for label in labels:
                self._first.setdefault(label, source)
        if self._around is not None:
            self._around.open_stream((id(self), call), labels, source)

    # --- asking ----------------------------------------------------------------------------------

    def of(self, arguments: Mapping[str, Any], *, encoded: bool = False) -> FoundLabels:
        """Return the labels of a call's arguments, as its body will receive them or as recorded.

        Args:
            arguments: the arguments by name.
            encoded: whether the arguments are in the trace's encoding.
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
        """Return the origins of one argument's labels; all labels if it can't be inspected."""
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
    """Return a step as a source, with the earlier step that its label comes from, if any."""
    inherited = next((earlier[label] for label in sorted(labels) if label in earlier), None)
    return LabelSource(number, name, inherited and (inherited.earlier or inherited))
