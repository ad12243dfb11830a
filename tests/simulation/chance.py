"""Random programs of the laws' lab, from a seed, without a search."""

from __future__ import annotations

from random import Random

from tests.laws.programs import Block, Branches, Node, Op, Program, Turn

__all__ = ["flat", "program"]

DOES = ("work", "work", "work", "work", "work", "fail", "lose before", "lose after")


def program(random: Random) -> Program:
    """Return a program with turns, branches, nested calls and transactions."""
    return tuple(_node(random, 2) for _ in range(random.randint(1, 4)))


def flat(random: Random) -> Program:
    """Return a program whose calls come one after the other."""
    nodes: list[Node] = []
    for _ in range(random.randint(1, 4)):
        some = tuple(_op(random) for _ in range(random.randint(1, 4)))
        nodes += [Block(some, random.random() < 0.7)] if random.random() < 0.5 else some
    return tuple(nodes)


def _op(random: Random) -> Op:
    tool = random.choice(("write", "write", "plain", "idem", "read", "pure"))
    return Op(tool, random.randint(0, 1), random.choice(DOES))


def _some(random: Random, depth: int, least: int = 1) -> tuple[Node, ...]:
    return tuple(_node(random, depth) for _ in range(random.randint(least, 3)))


def _nested(random: Random, depth: int) -> Op:
    tool = random.choice(("outer", "scope"))
    return Op(tool, random.randint(0, 1), "work", _some(random, depth - 1))


def _node(random: Random, depth: int) -> Node:
    kind = random.choice(("op", "op", "op", "op", "nested", "turn", "branches", "block"))
    if kind == "op" or not depth:
        return _op(random)
    if kind == "nested":
        return _nested(random, depth)
    if kind == "turn":
        together = tuple(
            _op(random) if random.random() < 0.7 else _nested(random, depth)
            for _ in range(random.randint(1, 3))
        )
        return Turn(together, random.choice(("slots", "turn")))
    if kind == "branches":
        lines = tuple(_some(random, depth - 1, 0) for _ in range(random.randint(1, 3)))
        names = tuple(f"line {number}" for number in range(len(lines)))
        return Branches(lines, names, random.choice(("opens", "slots", "turn")))
    return Block(_some(random, depth - 1), random.random() < 0.5)
