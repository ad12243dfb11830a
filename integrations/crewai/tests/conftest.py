"""CrewAI in tests: no network, nothing outside of a temporary folder, no question asked."""

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session
from rollcage.store import JsonlStore
from rollcage.trace import check_events

_HOME = tempfile.TemporaryDirectory(prefix="rollcage-crewai-")
# CrewAI reads these when it is imported, and keeps a database and a key below these folders.
os.environ |= {
    "HOME": _HOME.name,
    "XDG_DATA_HOME": _HOME.name,
    "CREWAI_STORAGE_DIR": "rollcage-tests",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TESTING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}

with warnings.catch_warnings():
    # crewai.rag forbids to set attributes on it, and Python can't note its submodules there.
    warnings.simplefilter("ignore", ImportWarning)
    # Older OpenTelemetry looks for entry points as Python did before 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    from crewai import Agent, Crew, Task
    from crewai.crews.crew_output import CrewOutput
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import BaseTool, tool

# CrewAI reads deprecated fields of its own wherever an agent or a crew is made.
_DEPRECATED = (
    "ignore:function_calling_llm is deprecated:DeprecationWarning",
    "ignore:deprecated:DeprecationWarning:crewai",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let CrewAI warn of what it does itself."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            for warning in _DEPRECATED:
                item.add_marker(pytest.mark.filterwarnings(warning))


# --- a small laboratory --------------------------------------------------------------------------


class Scripted(BaseLLM):
    """Answers by a script: calls to issue together, text, or an error; message by message."""

    script: list[Any]
    native: bool = True
    asked: list[Any]

    def supports_function_calling(self) -> bool:
        """Without it, an agent writes its calls as text."""
        return self.native

    def get_context_window_size(self) -> int:
        """Enough for any script."""
        return 1_000_000

    def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
        """None: the base class warns that it guesses."""
        return 0

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """The next answer; it goes by what was said, so that a task started over starts over."""
        said = sum(message["role"] == "assistant" for message in messages)
        self.asked.append(messages)
        answer = self.script[said]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return answer
        return [
            {
                "id": f"call-{said}-{slot}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for slot, (name, arguments) in enumerate(answer)
        ]

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        """The same in asyncio."""
        return self.call(messages, *args, **kwargs)


def act(name: str, **arguments: Any) -> str:
    """A call as an agent without native calls writes it."""
    return f"Thought: I should.\nAction: {name}\nAction Input: {json.dumps(arguments)}"


class Lab:
    """Sessions over a store of the test's own, crews in them, and their traces."""

    def __init__(self, root: Path) -> None:
        self.store = JsonlStore(root)

    act = staticmethod(act)

    def session(self, name: str = "job", **settings: Any) -> Session:
        """A session over the store."""
        return Session(name, store=self.store, **settings)

    def model(self, *script: Any, native: bool = True) -> Scripted:
        """A scripted model."""
        return Scripted(model="scripted", script=list(script), native=native, asked=[])

    def agent(self, model: BaseLLM, *tools: Any, **settings: Any) -> Agent:
        """An agent with these tools."""
        known = {"role": "actor", "goal": "act", "backstory": "An actor.", **settings}
        return Agent(llm=model, tools=list(tools), **known)

    def crew(self, *agents: Agent, task: Any = None, **settings: Any) -> Crew:
        """A crew with one task, for its first agent."""
        doing = {"agent": agents[0], **(task or {})}
        one = Task(description="Go.", expected_output="A text.", **doing)
        return Crew(agents=list(agents), tasks=[one], tracing=False, **settings)

    def kickoff(self, crew: Crew) -> CrewOutput:
        """Run a crew that does not stream."""
        output = crew.kickoff()
        assert isinstance(output, CrewOutput)
        return output

    def events(self, session: Session) -> list[dict[str, Any]]:
        """A session's trace."""
        trace = self.store.read(session.run_id)
        return check_events(trace.data, trace.where)

    def steps(self, session: Session) -> list[tuple[str, str]]:
        """The names of the steps of a trace, and what became of each."""
        events = self.events(session)
        ended = {e["step"]: e["outcome"]["status"] for e in events if e["event"] == "step.finished"}
        how = {"step.replayed": "replayed", "step.blocked": "blocked"}
        return [
            (e["name"], ended[e["step"]] if e["event"] == "step.started" else how[e["event"]])
            for e in events
            if e["event"] in ("step.started", *how)
        ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A store of the test's own, and crews over it."""
    return Lab(tmp_path / "store")


@pytest.fixture
def written() -> list[str]:
    """What the tool `write` has written."""
    return []


@pytest.fixture
def write(written: list[str]) -> BaseTool:
    """A tool that notes what it wrote."""

    @tool
    def write(text: str) -> str:
        """Write a text."""
        written.append(text)
        return f"wrote {text}, number {len(written)}"

    return write


@pytest.fixture
def fail(written: list[str]) -> BaseTool:
    """A tool that notes what it was asked to do, and fails."""

    @tool
    def fail(text: str) -> str:
        """Fail."""
        written.append(text)
        raise ValueError(f"no {text} today")

    return fail
