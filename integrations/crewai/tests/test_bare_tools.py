"""Tools that nobody guards, in a session that lets none of them run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import rollcage
from crewai.tools import BaseTool, tool
from rollcage import Session
from rollcage_crewai import as_tools, guard_crew, guard_tools

if TYPE_CHECKING:
    from .conftest import Lab

sent: list[str] = []
REFUSED = [("send", {"text": "a"}, "unguarded")]


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    """Begin with nothing."""
    sent.clear()


@tool("send")
def by_function(text: str) -> str:
    """Send a text."""
    sent.append(text)
    return "sent"


@tool("send")
async def by_coroutine(text: str) -> str:
    """Send a text."""
    sent.append(text)
    return "sent"


class Send(BaseTool):
    """A tool of a class."""

    name: str = "send"
    description: str = "Send a text."

    def _run(self, text: str) -> str:
        sent.append(text)
        return "sent"

    async def _arun(self, text: str) -> str:
        return self._run(text)


def by_hand(form: str) -> Any:
    """Call a bare tool as code does that is no agent."""
    made = by_coroutine if form.startswith("a") else by_function
    match form:
        case "run" | "arun of a coroutine":
            return made.run(text="a") if form == "run" else asyncio.run(made.arun(text="a"))
        case "by place":
            return Send().run("a")
        case "class":
            return Send().run(text="a")
        case "async class":
            return asyncio.run(Send().arun(text="a"))
        case "body":
            return Send()._run(text="a")
        case "ainvoke":
            return asyncio.run(Send().to_structured_tool().ainvoke({"text": "a"}))
        case _:
            return made.to_structured_tool().invoke({"text": "a"})


FORMS = [
    "run", "arun of a coroutine", "by place", "class", "async class", "body", "invoke", "ainvoke",
]  # fmt: skip


def refused(lab: Lab, session: Session) -> list[tuple[str, Any, str]]:
    lines = [e for e in lab.lines(session) if e["event"] == "refused"]
    return [(line["name"], line["args"], line["verdict"]["code"]) for line in lines]


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_bare_tool_that_is_called_by_hand_does_not_run(lab: Lab, form: str, thread: bool) -> None:
    heard: list[Any] = []
    with lab.session(unguarded="refuse") as session:
        if thread:  # it knows no session
            running = threading.Thread(target=lambda: heard.append(by_hand(form)))
            running.start()
            running.join()
        else:
            heard.append(by_hand(form))
    assert "send is not guarded" in str(heard[0])
    assert (sent, refused(lab, session)) == ([], REFUSED)
    with lab.session(replay="off"):
        by_hand(form)
    by_hand(form)
    assert sent == ["a", "a"]


@pytest.mark.parametrize("native", [True, False], ids=["calls", "text"])
def test_a_crew_that_nobody_guards_runs_no_tool(lab: Lab, native: bool) -> None:
    done = "Thought: I now can give a great answer\nFinal Answer: done"
    script = [[("send", {"text": "a"})], "done"] if native else [lab.act("send", text="a"), done]
    model = lab.model(*script, native=native)
    with lab.session(unguarded="refuse") as session:
        lab.kickoff(lab.crew(lab.agent(model, by_function)))
    assert (sent, refused(lab, session)) == ([], REFUSED)
    assert "send is not guarded" in str(model.asked[-1])


def test_guarded_and_declared_tools_run(lab: Lab) -> None:
    @rollcage.tool(effect="write", name="note")
    def note(text: str) -> str:
        """Note a text."""
        sent.append(f"noted {text}")
        return "noted"

    def run(session: Session) -> list[Any]:
        with session:
            each = [by_function, by_coroutine, Send()]
            tools = [guard_tools([one], session, effects={"send": "scope"})[0] for one in each]
            forms = [one.to_structured_tool() for one in tools]
            given = [one.run(text="a") for one in tools]
            given += [one.invoke({"text": "b"}) for one in forms]
            return [*given, *(one.run(text="c") for one in as_tools([note]))]

    first = lab.session(unguarded="refuse")
    given = run(first)
    assert given == ["sent"] * 6 + ["noted"]
    assert (sent, refused(lab, first)) == (["a"] * 3 + ["b"] * 3 + ["noted c"], [])
    assert run(lab.session(unguarded="refuse", replay="offline")) == given
    assert len(sent) == 7


def test_a_guarded_crew_runs_all_of_its_tools(lab: Lab) -> None:
    coworker = {"task": "Send.", "context": "None.", "coworker": "helper"}
    first = lab.model([("delegate_work_to_coworker", coworker)], [("send", {"text": "b"})], "done")
    second = lab.model([("send", {"text": "a"})], "done")
    agents = [
        lab.agent(first, by_function, allow_delegation=True),
        lab.agent(second, Send(), role="helper"),
    ]
    with lab.session(unguarded="refuse") as session:
        lab.kickoff(guard_crew(lab.crew(*agents), session))
    assert (sent, refused(lab, session)) == (["a", "b"], [])


def test_what_a_guarded_tool_does_in_its_body_is_its_own(lab: Lab) -> None:
    class Outer(BaseTool):
        """A tool that runs another one."""

        name: str = "outer"
        description: str = "Send a text."

        def _run(self, text: str) -> str:
            return str(Send().run(text=text))

    with lab.session(unguarded="refuse") as session:
        (outer,) = guard_tools([Outer()], session)
        assert outer.run(text="a") == "sent"
        (scope,) = guard_tools([Outer()], session, effects={"outer": "scope"})
        assert "send is not guarded" in scope.run(text="a")
    assert (sent, refused(lab, session)) == (["a"], REFUSED)
