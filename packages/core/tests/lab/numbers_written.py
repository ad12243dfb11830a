"""A write of numbers, and what undoes it."""

import pytest
from rollcage import compensate, tool

__all__ = ["done", "nothing_is_done", "unwrite", "write"]

done: list[int] = []


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    """Begin with nothing."""
    done.clear()


@tool(effect="write")
def unwrite(number: int) -> None:
    done.remove(number)


@tool(
    effect="write", undo=lambda args, before, result: [compensate(unwrite, number=args["number"])]
)
def write(number: int) -> int:
    done.append(number)
    return number
