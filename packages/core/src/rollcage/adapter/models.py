"""A model's call as a call of the session: the same request whenever the same is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollcage.adapter.shapes import is_list, is_model_class, is_object
from rollcage.contract.contract import Contract

__all__ = ["CallNumbers", "model_contract", "model_request", "option"]

_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "messages": {"type": "array"},
        "stop": {"type": "array"},
        "options": {"type": "object"},
    },
    "required": ["messages"],
}
_CALL_IDS: Final = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})


def model_contract(name: str, framework: str, *, replays: bool = False) -> Contract:
    """The contract of a model; its calls are `read`s.

    Args:
        name: the model's name.
        framework: whose model it is.
        replays: it gives recorded answers itself, so none is looked up for it.
    """
    return Contract(
        name=name,
        parameters=_PARAMETERS,
        effect="read",
        framework=framework,
        source="live" if replays else "recorded",
    )


def model_request(
    messages: Sequence[Any], *, stop: Sequence[str] | None = None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a model's call.

    Args:
        messages: as neutral data, without what no model sees (message ids, usage, metadata); the
            ids of tool calls as numbers: see `CallNumbers`.
        stop: words at which the answer ends.
        options: what else is part of the question; those that are None are not.
    """
    request: dict[str, Any] = {"messages": list(messages)}
    if stop:
        request["stop"] = list(stop)
    asked = {name: option(each) for name, each in options.items() if each is not None}
    if asked:
        request["options"] = asked
    return request


def option(value: Any) -> Any:
    """An option as data; a class that says what to answer with is its schema."""
    if is_model_class(value):
        return value.model_json_schema()
    if is_object(value):
        return {name: option(each) for name, each in value.items()}
    return [option(each) for each in value] if is_list(value) else value


class CallNumbers:
    """Numbers for the ids of tool calls, which are others in each run: in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, call_id: str | None) -> int:
        """The number of a call."""
        return self._numbers.setdefault(call_id or "", len(self._numbers))

    def within(self, content: Any) -> Any:
        """Content with numbers for ids: some providers repeat them in their blocks."""
        if is_object(content):
            return {
                name: self._numbers.get(each, each)
                if name in _CALL_IDS and isinstance(each, str)
                else self.within(each)
                for name, each in content.items()
            }
        return [self.within(each) for each in content] if is_list(content) else content
