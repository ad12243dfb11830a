"""The agent in AutoGen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage import Session

from rollcage_cli.quickstart.job import FINAL, QUESTION, TURNS, declared, functions

if TYPE_CHECKING:
    from autogen_core.models import ChatCompletionClient

__all__ = ["run"]


def run(outbox: Path, session: Session | None, *, dies: bool) -> str:
    """Run the agent; with a session, its model and its tools are guarded."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.tools import FunctionTool
    from rollcage_autogen import as_tools, guard_model

    model = _scripted_model()
    tools: list[Any]
    if session is None:
        plain = functions(outbox, dies=dies)
        tools = [FunctionTool(each, str(each.__doc__)) for each in plain]
    else:
        model = guard_model(model, session)
        tools = [*as_tools(declared(outbox, dies=dies)[:-1], session)]
    agent = AssistantAgent("clerk", model, tools=tools, max_tool_iterations=10)
    return str(asyncio.run(agent.run(task=QUESTION)).messages[-1].to_text())


def _scripted_model() -> ChatCompletionClient:
    """Return a model client with prepared answers."""
    from autogen_core import FunctionCall
    from autogen_core.models import (
        AssistantMessage,
        ChatCompletionClient,
        CreateResult,
        ModelFamily,
        ModelInfo,
        RequestUsage,
    )

    class ScriptedModel(ChatCompletionClient):
        """Stands in for a real client, so that this runs offline."""

        async def create(self, messages: Sequence[Any], **_: Any) -> CreateResult:
            """Return the next message of the script."""
            turn = sum(isinstance(message, AssistantMessage) for message in messages)
            content: str | list[FunctionCall] = FINAL
            if turn < len(TURNS):
                content = [
                    FunctionCall(f"{turn}-{slot}", json.dumps(args), name)
                    for slot, (name, args) in enumerate(TURNS[turn])
                ]
            reason: Any = "stop" if content == FINAL else "function_calls"
            return CreateResult(
                finish_reason=reason, content=content, usage=RequestUsage(0, 0), cached=False
            )

        async def create_stream(
            self, messages: Sequence[Any], **_: Any
        ) -> AsyncGenerator[str | CreateResult, None]:
            """Return the next message as a whole."""
            yield await self.create(messages)

        async def close(self) -> None:
            """Do nothing: no connection is open."""

        def actual_usage(self) -> RequestUsage:
            """Return no usage."""
            return RequestUsage(0, 0)

        def total_usage(self) -> RequestUsage:
            """Return no usage."""
            return RequestUsage(0, 0)

        def count_tokens(self, messages: Sequence[Any], **_: Any) -> int:
            """Return zero."""
            del messages
            return 0

        def remaining_tokens(self, messages: Sequence[Any], **_: Any) -> int:
            """Return enough tokens for the script."""
            del messages
            return 1_000_000

        @property
        def capabilities(self) -> Any:
            """Return `model_info`; AutoGen still asks for both."""
            return self.model_info

        @property
        def model_info(self) -> ModelInfo:
            """Return that the model calls tools."""
            return ModelInfo(
                vision=False,
                function_calling=True,
                json_output=False,
                family=ModelFamily.UNKNOWN,
                structured_output=False,
            )

    return ScriptedModel()
