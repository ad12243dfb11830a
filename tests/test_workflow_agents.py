"""Agents of real frameworks are steps of a workflow, which is cut off and resumed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import DidNotHappen, Happened, compensate, current_step, open_store, tool
from rollcage_adapter import session_here
from rollcage_workflow import execution, run
from rollcage_workflow.signals import Signals

MESSAGES = [["first"], ["second"], []]  # the things to put, for each message of the model
put_down: list[str] = []
asked: list[int] = []


@tool(effect="write", name="workflow_agents_put")
def workflow_agents_put(what: str) -> str:
    """Put something down."""
    put_down.append(what)
    return f"put {what}"


def message(turn: int) -> list[dict[str, Any]]:
    """Return the calls of one message."""
    asked.append(turn)
    return [
        {"id": f"call-{turn}", "name": "workflow_agents_put", "args": {"what": what}}
        for what in MESSAGES[turn]
    ]


def langchain_agent() -> Callable[..., Any]:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from rollcage_langchain import RollcageMiddleware, as_tools, guard_model

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            calls = message(sum(isinstance(each, AIMessage) for each in messages))
            answer = AIMessage("" if calls else "done", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    @tool(effect="scope", name="workflow_agent")
    async def agent(task: str) -> str:
        session = session_here()
        assert session is not None
        built: Any = create_agent(
            guard_model(Scripted(), session),
            as_tools([workflow_agents_put]),
            middleware=[RollcageMiddleware(session)],
        )
        state = await built.ainvoke({"messages": [("user", task)]})
        return str(state["messages"][-1].content)

    return agent


def autogen_agent() -> Callable[..., Any]:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import (
        AssistantMessage,
        CreateResult,
        ModelFamily,
        ModelInfo,
        RequestUsage,
    )
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from rollcage_autogen import as_tools, guard_model

    class Scripted(ReplayChatCompletionClient):
        async def create(self, messages: Any, **_: Any) -> CreateResult:
            calls = message(sum(isinstance(each, AssistantMessage) for each in messages))
            content: Any = [
                FunctionCall(each["id"], json.dumps(each["args"]), each["name"]) for each in calls
            ]
            reason: Any = "function_calls" if calls else "stop"
            return CreateResult(
                finish_reason=reason,
                content=content or "done",
                usage=RequestUsage(1, 1),
                cached=False,
            )

    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        family=ModelFamily.UNKNOWN,
        structured_output=False,
    )

    @tool(effect="scope", name="workflow_agent")
    async def agent(task: str) -> str:
        session = session_here()
        assert session is not None
        built = AssistantAgent(
            "clerk",
            guard_model(Scripted([], info), session),
            tools=[*as_tools([workflow_agents_put])],
            max_tool_iterations=5,
        )
        result = await built.run(task=task)
        return str(getattr(result.messages[-1], "content", ""))

    return agent


def crewai_agent() -> Callable[..., Any]:
    warnings.simplefilter("ignore")  # CrewAI warns of its own deprecations
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from rollcage_crewai import as_tools, guard_crew, guard_model

    class Scripted(BaseLLM):
        def supports_function_calling(self) -> bool:
            return True

        def get_context_window_size(self) -> int:
            return 1_000_000

        def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
            return 0

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            calls = message(sum(each["role"] == "assistant" for each in messages))
            return [
                {
                    "id": each["id"],
                    "type": "function",
                    "function": {"name": each["name"], "arguments": json.dumps(each["args"])},
                }
                for each in calls
            ] or "done"

    @tool(effect="scope", name="workflow_agent")
    def agent(task: str) -> str:
        session = session_here()
        assert session is not None
        clerk = Agent(
            role="clerk",
            goal="put things down",
            backstory="careful",
            llm=guard_model(Scripted(model="scripted"), session),
            tools=as_tools([workflow_agents_put]),
        )
        todo = Task(description=task, expected_output="done", agent=clerk)
        crew = guard_crew(Crew(agents=[clerk], tasks=[todo]), session)
        return str(crew.kickoff())

    return agent


def cut_behind_the_first_put(trace: Path) -> None:
    """Cut the log behind the first put, as if the process had died there."""
    lines = trace.read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    step = next(e["step"] for e in events if e.get("name") == "workflow_agents_put")
    (end,) = [
        number
        for number, event in enumerate(events, 1)
        if event["event"] == "outcome" and event["step"] == step
    ]
    trace.write_bytes(b"".join(lines[:end]))
    (trace.parents[1] / "docs" / "heads" / trace.stem).unlink()  # it never came to its end


@pytest.mark.parametrize("framework", [langchain_agent, autogen_agent, crewai_agent])
@pytest.mark.filterwarnings("ignore")  # of the frameworks, on import
def test_an_agent_is_a_step(framework: Callable[[], Any], tmp_path: Path) -> None:
    put_down.clear()
    asked.clear()
    plan = {
        "name": "agents",
        "steps": {
            "agent": {"agent": "workflow_agent", "args": {"task": "Put two things down."}},
            "go": {"wait": {"signal": "go"}, "after": ["agent"]},
            "end": {"value": "=agent"},
        },
    }
    how: dict[str, Any] = {"id": "one", "store": tmp_path / "store"}
    how["tools"] = [framework(), workflow_agents_put]
    found = asyncio.run(run(plan, **how))
    assert (found.status, put_down, asked) == ("waiting", ["first", "second"], [0, 1, 2])
    cut_behind_the_first_put(how["store"] / "logs" / f"{found.run}.jsonl")
    del put_down[1:], asked[:]
    found = asyncio.run(run(plan, **how))
    assert (found.status, put_down, asked) == ("waiting", ["first", "second"], [1, 2])
    Signals(open_store(how["store"]), "one").send("go", True, by="a test")
    found = asyncio.run(run(plan, **how))
    assert (found.status, found.output) == ("completed", "done")
    assert (put_down, asked) == (["first", "second"], [1, 2])
    assert execution(open_store(how["store"]), "one").steps[0].path == "agent"


def in_a_file(world: Path, kills: str = "") -> list[Any]:
    """Return the tool with effects in a file; its process dies behind the effect `kills`."""

    def standing() -> list[str]:
        return world.read_text().split() if world.exists() else []

    def key() -> str:
        step = current_step()
        assert step is not None
        return step.idempotency_key

    @tool(effect="write", idempotent=True, name="workflow_agents_take")
    def take(line: str) -> None:
        world.write_text("".join(f"{each}\n" for each in standing() if each != line))

    def probe(key: str, args: Any) -> Any:
        line = f"{key}:{args['what']}"
        return Happened(f"put {line}") if line in standing() else DidNotHappen()

    @tool(
        effect="write",
        name="workflow_agents_put",
        probe=probe,
        observe=lambda args: {args["what"]: [e for e in standing() if e.endswith(args["what"])]},
        undo=lambda result: [compensate(take, line=result.removeprefix("put "))],
    )
    def put(what: str) -> str:
        """Put something down."""
        line = f"{key()}:{what}"
        with world.open("a") as file:
            file.write(f"{line}\n")
        with world.with_name("all").open("a") as file:
            file.write(f"{what}\n")
        if what == kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"put {line}"

    @tool(effect="read", name="workflow_agents_fail")
    def fail() -> None:
        raise ValueError("it fails")

    return [put, take, fail]


KILLED = {
    "name": "killed",
    "on_failure": "rollback",
    "steps": {
        "agent": {"agent": "workflow_agent", "args": {"task": "Put two things down."}},
        "go": {"wait": {"signal": "go"}, "after": ["agent"]},
        "end": {"call": "workflow_agents_fail", "after": ["go"]},
    },
}


def attempt(framework: str, folder: str, kills: str) -> str:
    """Make an attempt at the execution; returns how it stands then."""
    tools = in_a_file(Path(folder) / "world", kills)
    globals()["workflow_agents_put"] = tools[0]  # what the agents are built with
    agent = globals()[framework]()
    found = asyncio.run(run(KILLED, id="one", store=f"{folder}/store", tools=[agent, *tools]))
    return found.status


@pytest.mark.parametrize("framework", ["langchain_agent", "autogen_agent", "crewai_agent"])
@pytest.mark.filterwarnings("ignore")  # of the frameworks, on import
def test_an_agent_is_killed_in_its_tool(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No effect is repeated or lost, and each is undone, as observed."""
    monkeypatch.setattr(sys.modules[__name__], "workflow_agents_put", workflow_agents_put)
    given = (framework, str(tmp_path), "first")
    said = f"from test_workflow_agents import attempt; attempt(*{given!r})"
    at = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    killed = subprocess.run([sys.executable, "-c", said], env=at, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "all").read_text().split() == ["first"]
    assert attempt(framework, str(tmp_path), "") == "waiting"
    assert (tmp_path / "all").read_text().split() == ["first", "second"]
    store = open_store(tmp_path / "store")
    Signals(store, "one").send("go", True, by="a test")
    with pytest.raises(ValueError, match="it fails"):
        attempt(framework, str(tmp_path), "")
    assert execution(store, "one").status == "rolled_back"
    assert (tmp_path / "world").read_text() == ""
    assert (tmp_path / "all").read_text().split() == ["first", "second"]
    undone = [
        json.loads(line)
        for trace in (tmp_path / "store" / "logs").glob("*.jsonl")
        for line in trace.read_bytes().splitlines()
        if line.startswith(b'{"event":"back"')
    ]
    assert [each["status"] for each in undone] == ["verified", "verified"]
