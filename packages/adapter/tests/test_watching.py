"""Calls of a framework's classes are looked at before they run, whenever the class was made."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rollcage_adapter import Answer, mcp_content, watch_methods


def base() -> Any:
    """The class of a framework's tools, which counts the subclasses that it has got."""

    class Base:
        made: list[str]

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            cls.made = [cls.__name__]

        def run(self, value: str) -> str:
            return f"ran {value}"

        async def arun(self, value: str) -> str:
            return f"awaited {value}"

        async def pieces(self, value: str) -> AsyncIterator[str]:
            yield "piece"
            yield value

    return Base


def refuse_no(_: Any, value: str) -> str | None:
    return "refused" if value == "no" else None


async def drained(stream: AsyncIterator[str]) -> list[str]:
    return [each async for each in stream]


def watched(*names: str) -> tuple[Any, Any]:
    """A tool whose class was there before, and one whose class came later."""
    root: Any = base()
    before: Any = type("Before", (root,), {"run": lambda _, value: f"own {value}"})
    watch_methods(root, names, refuse_no, streams=("pieces",))
    return before(), type("Later", (before,), {"run": lambda _, value: f"later {value}"})()


def test_an_answer_stands_for_the_call_in_each_class_and_form() -> None:
    before, later = watched("run", "arun", "pieces")
    assert (before.run("no"), later.run("no")) == ("refused", "refused")
    assert (before.run("a"), later.run("a")) == ("own a", "later a")
    assert asyncio.run(later.arun("no")) == "refused"
    assert asyncio.run(later.arun("a")) == "awaited a"
    assert asyncio.run(drained(later.pieces("no"))) == ["refused"]
    assert asyncio.run(drained(later.pieces("a"))) == ["piece", "a"]


def test_a_class_that_comes_later_is_made_as_the_framework_makes_it() -> None:
    before, later = watched("run")
    assert (before.made, later.made) == (["Before"], ["Later"])


def test_a_method_that_is_not_named_is_left_alone() -> None:
    before, _ = watched("run")
    assert asyncio.run(before.arun("no")) == "awaited no"


def test_usage_is_counted_or_not_known() -> None:
    assert Answer.used(3, 4) == {"input_tokens": 3, "output_tokens": 4}
    assert Answer.used(0, 0) is None
    assert Answer.used(None, 4) is None
    assert Answer(usage=Answer.used(3, 4)).tokens == (3, 4)
    assert Answer().tokens == (0, 0)


def test_content_of_a_servers_tool_is_blocks_or_its_error() -> None:
    blocks = [{"type": "text", "text": "12"}]
    assert mcp_content({"result": {"content": blocks}}, ValueError) == blocks
    assert mcp_content(12, ValueError) == blocks
    failed = {"result": {"content": blocks, "isError": True}}
    with pytest.raises(ValueError, match=r"^12$"):
        mcp_content(failed, ValueError)
