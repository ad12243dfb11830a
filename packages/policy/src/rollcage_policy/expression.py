"""The names that a condition uses, and its maximal cost, as its text shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Expression", "variable"]


@dataclasses.dataclass(frozen=True)
class Expression:
    """A condition as it was written, with the names that it uses.

    Attributes:
        source: its text.
        inner: the compiled text; see `_INNER_NAMES`.
        named: the compiled text with a variable for each argument, as `variable` names it. It gives
            the same result if all arguments that it uses are present. None if the condition uses
            the
            arguments in another way than by name.
        fields: by the name of each thing in it (`args`, `tool`, …) the fields that it uses; None if
            it uses all fields.
        functions: the functions of Rollcage that it calls.
        patterns: the patterns of its `matches`.
        degree: how its time grows with the number of elements of the arguments: 1 linearly, 2
            quadratically, and so on.
        operations: how many operations it has; a function of Rollcage counts as many.
        scanning: roughly how many states the patterns of its `matches` have.
        sums: how many of its operations are arithmetic.
        growth: by what factor its intermediate values can be larger than the arguments.
        literals: how many elements its own literals have.
    """

    source: str
    inner: str
    named: str | None
    fields: Mapping[str, frozenset[str] | None]
    functions: frozenset[str]
    patterns: frozenset[str]
    degree: int
    operations: int
    scanning: int
    sums: int
    growth: int
    literals: int

    def cost(self, elements: int, characters: int) -> float:
        """Return the maximal time with arguments of this size (ns, on a slow machine)."""
        elements = (elements + self.literals) * self.growth
        characters = characters * self.growth
        once = self.operations * (50 * elements + 0.25 * characters)
        once += self.scanning * 6 * characters
        once += self.sums * self.sums * 0.4 * characters
        return float(elements ** (self.degree - 1) * once)


def variable(argument: str) -> str:
    """Return the name of an argument's variable in `Expression.named`."""
    return f"args_{argument}"
