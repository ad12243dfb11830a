"""`rollcage mcp tools`: functions declared with `@rollcage.tool`, guarded, for any client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import to_json
from rollcage import Contract, Session
from rollcage_adapter import HALTED, REFUSED, exposes

from rollcage_mcp.contracts import GIVES_RESULT, OWN
from rollcage_mcp.errors import ServerError
from rollcage_mcp.messages import text_result
from rollcage_mcp.serving import ServedTool

__all__ = ["exposed_tools"]


def exposed_tools(
    functions: Iterable[Callable[..., Any] | Contract], session: Session
) -> list[ServedTool]:
    """Return tools guarded by the session: the tools of its facade are listed, others are refused.

    Args:
        functions: declared with `@rollcage.tool`, or the tools of a file of servers.
        session: already entered.
    """
    found: list[ServedTool] = []
    for each in functions:
        contract: Any = getattr(each, "__rollcage_contract__", None)
        if isinstance(contract, Contract) and callable(each) and not contract.name.startswith(OWN):
            found.append(_served(each, contract, session))
    return found


def _served(function: Callable[..., Any], contract: Contract, session: Session) -> ServedTool:
    async def call(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            value = await session.acall(function, **arguments)
        except REFUSED as error:
            return text_result(str(error), is_error=True)
        except HALTED as error:
            raise ServerError(-32000, str(error)) from None
        except Exception as error:  # noqa: BLE001 - the tool's own error is for the model to read
            return text_result(f"{type(error).__name__}: {error}", is_error=True)
        return value["result"] if GIVES_RESULT in vars(function) else _result(value)

    hints = {
        "readOnlyHint": contract.effect in ("read", "pure"),
        "idempotentHint": contract.idempotent,
    }
    schema = {
        word: each
        for word, each in contract.json_schema.items()
        if word not in ("x-openapi", "x-pack")
    }
    listed = exposes(session, contract)
    return ServedTool(contract.name, contract.description, schema, call, hints, listed)


def _result(value: Any) -> dict[str, Any]:
    """Return a value as a tool's result: a text unchanged, other values as JSON."""
    if isinstance(value, str):
        return text_result(value)
    return text_result(to_json(value, fallback=str).decode())
