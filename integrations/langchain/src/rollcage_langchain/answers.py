"""A LangChain message as a neutral answer, and the reverse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
)
from langchain_core.messages.ai import UsageMetadata
from rollcage_adapter import Answer, ToolRequest, as_object, is_list, is_object

__all__ = ["answer_of", "as_chunk", "message_of"]


def answer_of(message: AIMessage, beside: Mapping[str, Any]) -> Answer:
    """Return a message's content, in the framework-neutral form.

    `beside` is the provider's further data.
    """
    info = {**beside, **message.response_metadata}
    usage = message.usage_metadata
    return Answer(
        text=str(message.text),
        reasoning=_reasoning(message),
        tool_calls=tuple(_requests(message)),
        finish_reason=str(info.get("finish_reason") or info.get("stop_reason") or ""),
        response_id=_response_id(message, info),
        usage=usage
        and {"input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"]},
    )


def message_of(answer: Answer) -> AIMessage:
    """Return the message for an answer."""
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for request in answer.tool_calls:
        args = as_object(request.arguments)
        if args is not None:
            calls.append(ToolCall(name=request.name, args=args, id=request.id))
        else:
            invalid.append(
                InvalidToolCall(
                    type="invalid_tool_call",
                    name=request.name,
                    args=request.arguments,
                    id=request.id,
                    error="these arguments are not a JSON object",
                )
            )
    return AIMessage(
        content=answer.text,
        additional_kwargs={"reasoning_content": answer.reasoning} if answer.reasoning else {},
        tool_calls=calls,
        invalid_tool_calls=invalid,
        response_metadata={"finish_reason": answer.finish_reason} if answer.finish_reason else {},
        usage_metadata=_usage(answer),
        id=answer.response_id or None,
    )


def as_chunk(message: BaseMessage) -> AIMessageChunk:
    """Return a whole message as the one chunk of a stream."""
    fields = {name: getattr(message, name) for name in type(message).model_fields if name != "type"}
    return AIMessageChunk(**fields, chunk_position="last")


def _usage(answer: Answer) -> UsageMetadata | None:
    if answer.usage is None:
        return None
    asked, produced = answer.tokens
    return UsageMetadata(input_tokens=asked, output_tokens=produced, total_tokens=asked + produced)


def _response_id(message: AIMessage, info: Mapping[str, Any]) -> str:
    """Return the provider's own id; LangChain makes one up if there is none."""
    own = message.id if message.id and not message.id.startswith(("lc_", "run-")) else ""
    return str(info.get("id") or own)


def _reasoning(message: AIMessage) -> str:
    """Return the model's reasoning: providers put it into blocks of the content, or next to it."""
    blocks: Any = message.content
    thought = [
        str(block.get("reasoning") or block.get("thinking") or "")
        for block in (blocks if is_list(blocks) else [])
        if is_object(block) and block.get("type") in ("reasoning", "thinking")
    ]
    return "".join(thought) or str(message.additional_kwargs.get("reasoning_content") or "")


def _requests(message: AIMessage) -> list[ToolRequest]:
    """Return the calls, with the model's own arguments if LangChain keeps them."""
    raw: dict[Any, str] = {}
    if isinstance(message, AIMessageChunk):
        raw = {each["id"]: each["args"] or "" for each in message.tool_call_chunks}
    calls: Any = message.additional_kwargs.get("tool_calls")
    for each in calls if is_list(calls) else []:
        raw[each.get("id")] = each.get("function", {}).get("arguments", "")
    requests = [
        ToolRequest(
            call["name"],
            raw.get(call["id"]) or json.dumps(call["args"], ensure_ascii=False),
            call["id"] or "",
        )
        for call in message.tool_calls
    ]
    requests += [
        ToolRequest(call["name"] or "", call["args"] or "", call["id"] or "")
        for call in message.invalid_tool_calls
    ]
    return requests
