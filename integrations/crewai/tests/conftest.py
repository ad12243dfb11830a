"""CrewAI in tests: no network, nothing outside of a temporary folder, no question asked."""

import dataclasses
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from rollcage import Options, Session
from rollcage.trace.chain import parse
from rollcage.trace.folder import Folder
from rollcage_conformance import Witness

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


_OPTIONS = {field.name for field in dataclasses.fields(Options)}


class Lab:
    """Sessions over a store of the test's own, crews in them, and their traces."""

    def __init__(self, root: Path) -> None:
        self.store = Folder(root)
        self._witnesses: dict[Session, Witness] = {}

    act = staticmethod(act)

    def session(self, name: str = "job", *, inner: bool = False, **settings: Any) -> Session:
        """A session over the store, with a witness of its calls; `inner`: one inside of another.

        Fields of `Options` are among the settings.
        """
        chosen = {each: settings.pop(each) for each in _OPTIONS & settings.keys()}
        witness, options = Witness(), Options(**chosen)
        stages = [] if inner else [witness]
        session = Session(name, store=self.store, stages=stages, options=options, **settings)
        self._witnesses[session] = witness
        return session

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

    def lines(self, session: Session, event: str = "") -> list[dict[str, Any]]:
        """The lines of a run's log, of one kind or all, checked."""
        found = parse(self.store.read(session.run_id), session.run_id)
        return [line for line in found if event in ("", line["event"])]

    def records(self, session: Session, kind: str = "tool") -> list[dict[str, Any]]:
        """The calls of an attempt, by turn and slot: see `Witness.records`."""
        return self._witnesses[session].records(kind)

    def steps(self, session: Session, kind: str = "tool") -> list[tuple[str, str]]:
        """The names of the calls of an attempt, and what became of each."""
        return [
            (each["name"], each["outcome"]["status"] if each["how"] == "ran" else each["how"])
            for each in self.records(session, kind)
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
