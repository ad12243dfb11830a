"""Tools of a workbench's own list: their calls, and their results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from autogen_core import CancellationToken, Image
from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult
from pydantic import BaseModel
from rollcage import Contract, Session
from rollcage_adapter import (
    GuardedCall,
    GuardedTool,
    Instead,
    gathered,
    mcp_blocks,
    mcp_failure,
)

from rollcage_autogen.bare import in_guarded_call
from rollcage_autogen.private import hear_errors
from rollcage_autogen.turns import placed
from rollcage_autogen.values import Piece, last_piece

__all__ = ["ListedTool", "ToolFailed", "result_of", "text_result"]


class ToolFailed(Exception):
    """A workbench's tool ended with an error result, which is recorded as an error."""

    @property
    def result(self) -> ToolResult:
        """Return the error result."""
        value: Any = self.args[0] if self.args else ""
        return (
            value if isinstance(value, ToolResult) else text_result("", str(value), is_error=True)
        )

    def __str__(self) -> str:
        return self.result.to_text()


class _Call(GuardedCall):
    """A call of a listed tool. Its `ToolResult` is recorded; an error result, as an error.

    So is any other tool's failure; its texts do not show the kind of failure.
    """

    def __init__(
        self,
        guard: ListedTool,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken,
        call_id: str | None,
    ) -> None:
        super().__init__(guard.session, guard.contract, arguments or {})
        self._guard = guard
        self._name = name
        self._rest = token, call_id
        self._errors: list[BaseException] = []

    def around(self) -> contextlib.AbstractContextManager[None]:
        return placed(self.session, self._rest[1] or "")

    def instead(self, inside: Callable[..., Any]) -> Instead:
        def answered(value: Any) -> Any:
            text = value if isinstance(value, str) else json.dumps(value)
            result = text_result(self._name, text)
            return [Piece(result)] if self._guard.streams else result

        return Instead(gathered(lambda values: inside(self._name, values, *self._rest)), answered)

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        with in_guarded_call(), _hearing(self._guard.inner, self._errors):
            yield

    def kept(self, value: Any) -> Any:
        result = self.kept_piece(value)
        return [result] if self._guard.streams else result.value

    def kept_piece(self, piece: Any) -> Piece:
        if isinstance(piece, ToolResult) and piece.is_error:
            raise ToolFailed(piece) from (self._errors[0] if self._errors else None)
        return Piece(piece)

    def given(self, value: Any) -> ToolResult:
        """Return the result for this agent's workbench; it may have been recorded elsewhere."""
        return result_of(self._name, last_piece(value))

    def given_piece(self, piece: Any) -> Any:
        value = piece.value if isinstance(piece, Piece) else piece
        return result_of(self._name, value) if isinstance(value, ToolResult) else value


class ListedTool(GuardedTool):
    """The guard of one tool of a workbench.

    Args:
        session: the session that guards the calls.
        contract: the contract of the tool, as the workbench lists it.
        inner: the workbench.
        streams: whether streams are requested.
    """

    def __init__(self, session: Session, contract: Contract, inner: Any, *, streams: bool) -> None:
        super().__init__(session, contract)
        self.inner = inner
        self.streams = streams

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:  # noqa: ARG002 - called by place alone
        """Return a call of the workbench, as `call_tool` makes it."""
        return _Call(self, *args)


_heard: Final[ContextVar[list[BaseException] | None]] = ContextVar(
    "rollcage_autogen_heard", default=None
)


@contextlib.contextmanager
def _hearing(workbench: Any, errors: list[BaseException]) -> Generator[None]:
    """Note the errors of a workbench's call, which it answers only with their texts."""
    hear_errors(workbench, _hear)
    token = _heard.set(errors)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a stream that is closed elsewhere
            _heard.reset(token)


def _hear(error: BaseException) -> None:
    heard = _heard.get()
    if heard is not None:
        heard.append(error)


def result_of(name: str, value: Any) -> ToolResult:
    """Return a result for this agent's workbench; it may have been recorded elsewhere."""
    if isinstance(value, ToolResult):
        return value.model_copy(update={"name": name})
    failed = mcp_failure(value)
    if failed is not None:
        return text_result(name, failed, is_error=True)
    blocks = _blocks(value)
    if blocks is not None:
        return ToolResult(name=name, result=blocks)
    return text_result(
        name, value.model_dump_json() if isinstance(value, BaseModel) else str(value)
    )


def _blocks(value: Any) -> list[TextResultContent | ImageResultContent] | None:
    """Return content blocks of another framework as AutoGen's; None without any."""
    blocks = mcp_blocks(value)
    return None if blocks is None else [_shown(each) for each in blocks]


def _shown(block: Mapping[str, Any]) -> TextResultContent | ImageResultContent:
    """Return a block in the form of an MCP server's workbench."""
    if block["type"] == "text":
        return TextResultContent(content=str(block.get("text", "")))
    if block["type"] == "image" and "data" in block:
        with contextlib.suppress(Exception):  # any error of the library for images
            return ImageResultContent(content=Image.from_base64(block["data"]))
    return TextResultContent(content=json.dumps(block))


def text_result(name: str, text: str, *, is_error: bool = False) -> ToolResult:
    """A result that is a text."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=is_error)
