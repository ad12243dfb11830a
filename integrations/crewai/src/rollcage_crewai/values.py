"""CrewAI's own values in a trace: neutral data from which each is restored."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from crewai.tools.tool_failure import ToolFailure
from pydantic import BaseModel
from rollcage.session.adapters import register_native
from rollcage_adapter import Answer, Parts, is_list, is_object, register_parts

from rollcage_crewai.answers import ModelResponse, requests_of

__all__ = ["register"]


class _Responses:
    """Responses: the answer; under `crewai`, data for CrewAI only."""

    name = "crewai.response"
    portable = True

    def project(self, value: ModelResponse) -> dict[str, Any]:
        own: dict[str, Any] = {"usage": value.usage, "chunks": value.chunks}
        calls = requests_of(value.value)
        if calls and all(is_object(call) for call in value.value):
            own["calls"] = value.value
        elif isinstance(value.value, BaseModel):
            own["structured"] = value.value.model_dump(mode="json")
        elif not calls and not isinstance(value.value, str):
            own["other"] = value.value
        return {**value.answer.as_data(), "crewai": {n: v for n, v in own.items() if v}}

    def revive(self, data: Any) -> ModelResponse:
        answer = Answer.from_data(data)
        own: Any = data.get("crewai")
        if not is_object(own):
            raise ValueError("a recorded response of CrewAI has a part of its own")
        response = ModelResponse.of(answer)
        for form in ("calls", "structured", "other"):
            response.value = own.get(form, response.value)
        chunks = own.get("chunks", [])
        if not is_list(chunks) or not all(_is_chunk(chunk) for chunk in chunks):
            raise ValueError("the chunks of a recorded response are a list of pieces")
        usage = own.get("usage")
        if not is_object(usage) and usage is not None:
            raise ValueError("the usage of a recorded response is an object")
        return dataclasses.replace(response, chunks=chunks, usage=usage)


def _is_chunk(chunk: Any) -> bool:
    if not is_list(chunk) or len(chunk) < 2 or not all(isinstance(c, str) for c in chunk[:2]):
        return False
    return chunk[0] != "call" or (len(chunk) == 3 and is_object(chunk[2]))


@functools.cache
def register() -> None:
    """Register CrewAI's types for the trace. Once is enough."""
    register_native([ModelResponse], _Responses())
    failure = Parts.of_model("crewai.tool_failure", ToolFailure, exclude_defaults=True)
    register_parts({ToolFailure: failure})
