"""The agent in LangChain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage import Session

from rollcage_cli.quickstart.job import FINAL, QUESTION, TURNS, declared, functions

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["run"]


def run(outbox: Path, session: Session | None, *, dies: bool) -> str:
    """Run the agent; with a session, its model, its tools and the agent itself are guarded."""
    from langchain.agents import (
        create_agent,  # pyright: ignore[reportUnknownVariableType] - partly untyped there
    )
    from langchain_core.tools import StructuredTool
    from rollcage_langchain import RollcageMiddleware, as_tools, guard_model

    model = _scripted_model()
    hooks: list[Any] = []
    if session is None:
        tools = [StructuredTool.from_function(each) for each in functions(outbox, dies=dies)]
    else:
        model = guard_model(model, session)
        tools = as_tools(declared(outbox, dies=dies)[:-1], session)
        hooks = [RollcageMiddleware(session)]
    agent: Any = create_agent(model, tools, middleware=hooks)
    state = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]})
    return str(state["messages"][-1].content)


def _scripted_model() -> BaseChatModel:
    """Return a chat model with prepared answers."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class ScriptedModel(BaseChatModel):
        """Stands in for a real model, so that this runs offline."""

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            """Return the model: the script names the tools already."""
            del tools, kwargs
            return self

        def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
            turn = sum(isinstance(message, AIMessage) for message in messages)
            answer = AIMessage(FINAL)
            if turn < len(TURNS):
                asked: Any = [
                    {"name": name, "args": args, "id": f"{turn}-{slot}", "type": "tool_call"}
                    for slot, (name, args) in enumerate(TURNS[turn])
                ]
                answer = AIMessage("", tool_calls=asked)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    return ScriptedModel()
