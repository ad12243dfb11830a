"""Programs as data: what an agent does, whatever it is told.

A program is a row of nodes. Hypothesis draws them, so that it can also make a failing one smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from hypothesis import strategies as st

__all__ = [
    "LEAVES", "WRITES", "Block", "Branches", "Inner", "Node", "Op", "Program", "Turn", "flat",
    "has_models", "inside", "parts", "programs", "seeds", "sequential", "size",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Op:
    """One call.

    `does`: work, fail, or get lost once, before its effect or after it.
    """

    tool: str  # write (with a probe), plain, idem, stream, thread, read, pure, model, outer, scope
    arg: int = 0
    does: str = "work"
    inner: tuple[Node, ...] = ()  # what the body of an outer or a scope calls


@dataclasses.dataclass(frozen=True)
class Turn:
    """Calls that were issued together.

    Attributes:
        nodes: the calls, or blocks of calls.
        how: `slots` (each declares its slot, so they may come in any order), `turn` (an explicit
            turn in which they come as told), `overlap` (gathered, without a turn) or `message`
            (as `slots`, and the turn announces its calls; it has no blocks).
    """

    nodes: tuple[Node, ...]
    how: str = "slots"


@dataclasses.dataclass(frozen=True)
class Branches:
    """Agents that run at once, each in a branch of its own.

    Attributes:
        lines: what each of them does.
        names: the name of each branch.
        how: `opens` (the turn announces the names), `slots` or `turn`, as in `Turn`.
        after: the earlier lines that each one comes after.
    """

    lines: tuple[tuple[Node, ...], ...]
    names: tuple[str, ...]
    how: str = "opens"
    after: tuple[frozenset[int], ...] = ()

    def before(self, number: int) -> list[int]:
        """Return the lines that this one comes after."""
        return sorted(self.after[number]) if number < len(self.after) else []


@dataclasses.dataclass(frozen=True)
class Block:
    """A transaction; one that `raises` is taken back."""

    nodes: tuple[Node, ...]
    raises: bool = False


@dataclasses.dataclass(frozen=True)
class Inner:
    """A session that is opened inside the session around it."""

    name: str
    nodes: tuple[Node, ...]


Node = Op | Turn | Branches | Block | Inner
Program = tuple[Node, ...]

WRITES = ("write", "plain", "idem", "stream", "thread", "outer")
LEAVES = ("write", "plain", "idem", "read", "pure", "model")


def flat(nodes: Sequence[Node]) -> Iterator[Op]:
    """Return every call of a program, the ones in bodies too."""
    return (node for node in parts(nodes) if isinstance(node, Op))


def inside(node: Node) -> Program:
    """Return what stands in a call or a block, line by line."""
    match node:
        case Op():
            return node.inner
        case Branches(lines):
            return tuple(each for line in lines for each in line)
        case _:
            return node.nodes


def parts(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield all that stands in a program."""
    for node in nodes:
        yield node
        yield from parts(inside(node))


def size(nodes: Sequence[Node]) -> int:
    """Return how much there is in a program: its calls, and the blocks around them."""
    lines = sum(len(node.lines) - 1 for node in parts(nodes) if isinstance(node, Branches))
    return lines + sum(1 for _ in parts(nodes))


def sequential(nodes: Sequence[Node]) -> bool:
    """Return whether there is one order only in which a program can happen."""
    return not any(
        isinstance(node, Branches) or (isinstance(node, Turn) and len(node.nodes) > 1)
        for node in parts(nodes)
    )


def has_models(node: Node) -> bool:
    """Return whether a model is asked directly here: answers go by rank, so order matters."""
    match node:
        case Op():
            return node.tool == "model"
        case Turn(nodes):
            return any(has_models(each) for each in nodes)
        case _:
            return False


# --- random ones ---------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
BLOCKS: Final = ("outer", "scope", "turn", "message", "branches", "block", "inner")


def _ops(tools: Sequence[str], does: Sequence[str], args: int) -> st.SearchStrategy[Op]:
    def build(tool: str, arg: int, does: str) -> Op:
        return Op(tool, arg, does if tool in WRITES or does == "fail" else "work")

    return st.builds(build, st.sampled_from(tools), st.integers(0, args - 1), st.sampled_from(does))


@st.composite
def _branches(draw: st.DrawFn, rows: st.SearchStrategy[tuple[Node, ...]]) -> Branches:
    lines = draw(st.lists(rows, min_size=1, max_size=3))
    how = draw(st.sampled_from(["opens", "slots", "turn"]))
    names = [f"b{number}" for number in range(len(lines))]
    if how != "opens" and draw(st.booleans()):
        names = ["b0"] * len(lines)
    if how == "turn":  # they come in the order in which they are told: none waits for another
        return Branches(tuple(lines), tuple(names), how)
    numbers = range(len(lines))
    after = [draw(st.frozensets(st.sampled_from(range(n)))) if n else frozenset() for n in numbers]
    return Branches(tuple(lines), tuple(names), how, tuple(after))


def programs(
    *,
    tools: Sequence[str] = LEAVES,
    does: Sequence[str] = ("work", "work", "work", "fail"),
    blocks: Sequence[str] = BLOCKS,
    raises: bool = True,
    args: int = 2,
    length: int = 4,
    depth: int = 2,
) -> st.SearchStrategy[Program]:
    """Draw programs of these tools and blocks.

    Args:
        tools: the tools of single calls.
        does: what calls may do.
        blocks: what may stand around calls.
        raises: whether transactions may raise.
        args: how many arguments there are; few, so that many calls are identical.
        length: how many nodes stand in a row, at most.
        depth: how many blocks stand in one another, at most.
    """
    leaf = _ops(tools, does, args)
    node: st.SearchStrategy[Node] = leaf
    part: st.SearchStrategy[Node] = leaf  # of a turn: what stands in no turn of its own
    for _ in range(depth):
        row = st.lists(node, min_size=1, max_size=3).map(tuple)
        several = st.lists(part, min_size=2, max_size=3).map(tuple)
        around: dict[str, st.SearchStrategy[Node]] = {
            "outer": st.builds(
                Op, st.just("outer"), st.integers(0, args - 1), st.sampled_from(does), row
            ),
            "scope": st.builds(Op, st.just("scope"), st.integers(0, args - 1), inner=row),
            "turn": st.builds(Turn, several, st.sampled_from(["slots", "turn"])),
            "overlap": st.builds(
                Turn, st.lists(leaf, min_size=2, max_size=3).map(tuple), st.just("overlap")
            ),
            "message": st.builds(
                Turn, st.lists(leaf, min_size=1, max_size=3).map(tuple), st.just("message")
            ),
            "branches": _branches(row),
            "block": st.builds(Block, row, st.booleans() if raises else st.just(False)),
            "inner": st.builds(Inner, st.sampled_from(["in", "side"]), row),
        }
        parts = [around[each] for each in blocks if each in ("outer", "scope", "block", "inner")]
        node = st.one_of(leaf, leaf, *(around[each] for each in blocks))
        part = st.one_of(leaf, leaf, *parts)
    return st.lists(node, min_size=1, max_size=length).map(tuple)
