"""An incident, recorded in LangChain, looked into in AutoGen and CrewAI: nothing runs again."""

import asyncio
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import rollcage
from rollcage import Session

ran: list[str] = []


# --- the tools, declared once --------------------------------------------------------------------


@rollcage.tool(effect="read")
def read_log(service: str, lines: int = 2) -> list[str]:
    """Read the end of a service's log."""
    ran.append("read_log")
    return [f"{service}: out of memory", f"{service}: killed"][:lines]


@rollcage.tool
def scale(service: str, replicas: int) -> dict[str, Any]:
    """Change how many of a service run."""
    ran.append("scale")
    return {"service": service, "replicas": replicas}


@rollcage.tool
def page(who: str, text: str) -> None:
    """Wake somebody."""
    ran.append("page")


TOOLS = (read_log, scale, page)
DECISIONS: list[list[tuple[str, dict[str, Any]]]] = [
    [("read_log", {"service": "api"}), ("read_log", {"service": "web", "lines": 1})],
    [("scale", {"service": "api", "replicas": 0})],  # the mistake
    [("page", {"who": "ann", "text": "api is scaled"})],
]
VERDICT = "api is scaled, ann knows."


# --- the night: LangChain ------------------------------------------------------------------------


def record() -> list[str]:
    """The agent on duty; what its model saw of its tools."""
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from rollcage_langchain import RollcageMiddleware, as_tools, guard_model

    class OnDuty(BaseChatModel):
        """Decides by the script. It stands in for a real chat model, so that this runs offline."""

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            turn = sum(isinstance(message, AIMessage) for message in messages)
            answer = AIMessage(VERDICT)
            if turn < len(DECISIONS):
                calls: list[Any] = [
                    {"name": name, "args": args, "id": f"{turn}-{slot}", "type": "tool_call"}
                    for slot, (name, args) in enumerate(DECISIONS[turn])
                ]
                answer = AIMessage("", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    with Session("night watch") as session:
        agent: Any = create_agent(
            guard_model(OnDuty(), session),
            as_tools(TOOLS, session),
            middleware=[RollcageMiddleware(session)],
        )
        messages = agent.invoke({"messages": [("user", "api is down")]})["messages"]
    return [message.text for message in messages if message.type == "tool"]


# --- the morning: the same decisions, in the frameworks of those who look into it ----------------


async def look_in_autogen() -> list[str]:
    """Nobody decides and nothing runs: the model's answers and the tools' results are recorded."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.messages import ToolCallExecutionEvent
    from rollcage_autogen import ReplayModel, as_tools

    async with Session("night watch", replay="offline") as session:
        agent = AssistantAgent(
            "analyst",
            ReplayModel(session),
            tools=list(as_tools(TOOLS, session)),
            max_tool_iterations=10,
        )
        told = await agent.run(task="What happened?")
        assert session.stats.hits == 4
    assert VERDICT in told.messages[-1].to_text()
    events = [each for each in told.messages if isinstance(each, ToolCallExecutionEvent)]
    return [result.content for event in events for result in event.content]


def look_in_crewai() -> list[str]:
    """The same, with a crew of one."""
    warnings.simplefilter("ignore")  # CrewAI warns of what it does itself
    from crewai import Agent, Crew, Task
    from rollcage_crewai import ReplayModel, as_tools, guard_crew

    with Session("night watch", replay="offline") as session:
        model = ReplayModel(session)
        analyst = Agent(
            role="analyst",
            goal="find out what happened",
            backstory="An analyst.",
            llm=model,
            tools=as_tools(TOOLS, session),
        )
        task = Task(description="What happened?", expected_output="A verdict.", agent=analyst)
        crew = guard_crew(Crew(agents=[analyst], tasks=[task], tracing=False), session)
        told: Any = crew.kickoff()
        assert session.stats.hits == 4
    assert VERDICT in told.raw
    messages = told.tasks_output[0].messages
    return [str(each["content"]) for each in messages if each["role"] == "tool"]


def main() -> None:
    """Record in one framework, replay in the two others, and compare what the models saw."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path.cwd()
        os.environ |= {"XDG_DATA_HOME": folder, "CREWAI_DISABLE_TELEMETRY": "true"}
        os.chdir(folder)
        try:
            seen = {"LangChain": record()}
            recorded = list(ran)
            print(f"recorded in LangChain: {len(recorded)} tools ran")
            seen["AutoGen"] = asyncio.run(look_in_autogen())
            seen["CrewAI"] = look_in_crewai()
        finally:
            os.chdir(home)
    assert ran == recorded
    print("replayed in AutoGen and CrewAI: 0 tools ran\n\nwhat each model saw of its tools:")
    calls = [(name, args) for message in DECISIONS for name, args in message]
    for place, (name, args) in enumerate(calls):
        print(f"\n{name}({', '.join(f'{key}={each!r}' for key, each in args.items())})")
        for framework, texts in seen.items():
            print(f"  {framework:<10} {texts[place]}")
    assert "'replicas': 0" in seen["AutoGen"][2]
    assert '"replicas": 0' in seen["LangChain"][2]


if __name__ == "__main__":
    main()
