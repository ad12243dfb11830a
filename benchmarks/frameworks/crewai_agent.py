"""Measure CrewAI: a crew of one over a function tool, `kickoff` after `kickoff`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import cpu_of_agents, messages
from benchmarks.workload import send_mail


def agents(calls: int, folder: Path, together: int = 1) -> dict[str, float]:
    """Measure a crew with the bare tool, and a crew with the guarded, recorded tool."""
    os.environ |= {"XDG_DATA_HOME": str(folder), "CREWAI_DISABLE_TELEMETRY": "true"}
    from rollcage import Session
    from rollcage_crewai import guard_crew

    with Session("bench", store=folder) as session:
        bare = _crew(lambda crew: crew, together)
        guarded = _crew(lambda crew: guard_crew(crew, session), together)
        return cpu_of_agents({"bare_us": bare, "guarded_us": guarded}, calls)


def _crew(guard: Callable[[Any], Any], together: int) -> Callable[[int], None]:
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool

    class Scripted(BaseLLM):
        """Ask for the calls, then end."""

        script: list[Any] = []  # noqa: RUF012 - Pydantic copies a default

        def supports_function_calling(self) -> bool:
            return True

        def get_context_window_size(self) -> int:
            return 1_000_000

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            turn = sum(each["role"] == "assistant" for each in messages)
            if turn == len(self.script):
                return "done"
            return [
                {
                    "id": f"{turn}-{slot}",
                    "type": "function",
                    "function": {"name": "send_mail", "arguments": json.dumps(args)},
                }
                for slot, args in enumerate(self.script[turn])
            ]

    model = Scripted(model="scripted")
    agent = Agent(
        role="sender",
        goal="send",
        backstory="A sender.",
        llm=model,
        tools=[tool("send_mail")(send_mail)],
    )
    task = Task(description="Go.", expected_output="A text.", agent=agent)
    crew = guard(Crew(agents=[agent], tasks=[task], tracing=False))

    def run(first: int) -> None:
        model.script = messages(first, together)
        told: Any = crew.kickoff()
        assert told.raw == "done"

    return run
