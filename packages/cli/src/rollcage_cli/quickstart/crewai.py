"""The agent in CrewAI: a crew of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage import Session

from rollcage_cli.quickstart.job import FINAL, QUESTION, TURNS, declared, functions

if TYPE_CHECKING:
    from crewai.llms.base_llm import BaseLLM

__all__ = ["run"]


def run(outbox: Path, session: Session | None, *, dies: bool) -> str:
    """Run the crew; with a session, its model, its tools and the crew itself are guarded."""
    from crewai import Agent, Crew, Task
    from crewai.tools import tool as crewai_tool
    from rollcage_crewai import as_tools, guard_crew, guard_model

    model = _scripted_model()
    tools: list[Any]
    if session is None:
        plain: list[Any] = [*functions(outbox, dies=dies)]
        tools = [crewai_tool(each.__name__)(each) for each in plain]
    else:
        model = guard_model(model, session)
        tools = [*as_tools(declared(outbox, dies=dies)[:-1], session)]
    clerk = Agent(role="clerk", goal="be paid", backstory="A clerk.", llm=model, tools=tools)
    task = Task(description=QUESTION, expected_output="What was done.", agent=clerk)
    crew: Any = Crew(agents=[clerk], tasks=[task], tracing=False)
    if session is not None:
        crew = guard_crew(crew, session)
    return str(crew.kickoff())


def _scripted_model() -> BaseLLM:
    """Return a model with prepared answers."""
    from crewai.llms.base_llm import BaseLLM

    class ScriptedModel(BaseLLM):
        """Stands in for a real model, so that this runs offline."""

        def supports_function_calling(self) -> bool:
            """Return that calls are given as such, not as text."""
            return True

        def get_context_window_size(self) -> int:
            """Return enough tokens for the script."""
            return 1_000_000

        def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
            """Return zero."""
            return 0

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            """Return the next message of the script."""
            turn = sum(message["role"] == "assistant" for message in messages)
            if turn == len(TURNS):
                return FINAL
            return [
                {
                    "id": f"{turn}-{slot}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(args)},
                }
                for slot, (name, args) in enumerate(TURNS[turn])
            ]

    return ScriptedModel(model="scripted")
