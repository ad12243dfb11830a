"""What an agent is told of a call that did not run, and how a halted session ends it."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, tool
from rollcage import (
    ApprovalRequired,
    Halt,
    Options,
    ReplayMiss,
    Session,
    StepView,
    Verdict,
)

Run = Callable[..., Any]


def no_writing(step: StepView) -> Verdict | None:
    """A rule."""
    return Verdict.deny("nothing is written on a Sunday") if step.name == "write" else None


def broken(step: StepView) -> Verdict | None:
    """A rule with a bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize(("rule", "said"), [(no_writing, "Sunday"), (broken, "ZeroDivisionError")])
def test_a_denied_call_is_answered_with_an_error_and_runs_nothing(
    run: Run, rule: Any, said: str, writer: StructuredTool, written: list[str]
) -> None:
    done = run([writer], [[("write", {"text": "a"})], "I see"], gate=[rule])
    assert done.error is None
    assert written == []
    answer = done.state["messages"][2]
    assert isinstance(answer, ToolMessage)
    assert answer.status == "error"
    assert said in str(answer.content)
    assert done.state["messages"][-1].content == "I see"
    assert done.session.stats.blocked == 1


def test_arguments_without_an_encoding_are_answered_with_an_error(run: Run) -> None:
    ran: list[Any] = []

    @tool
    def take(x: Any) -> str:
        """Take it."""
        ran.append(x)
        return "taken"

    done = run([take], [[("take", {"x": {1: object()}})], "I see"])
    assert done.error is None
    assert ran == []
    assert done.state["messages"][2].status == "error"


def test_a_crash_in_our_own_hook_runs_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, writer: StructuredTool, written: list[str]
) -> None:

    def crash(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Session, "place", crash)
    done = run([writer], [[("write", {"text": "a"})], "done"])
    assert isinstance(done.error, ZeroDivisionError)
    assert written == []


# --- halted sessions -----------------------------------------------------------------------------


def ask_first(step: StepView) -> Verdict | None:
    """A rule that wants approval."""
    return Verdict.ask("who said so?") if step.args.get("text") == "b" else None


def test_a_halted_session_ends_the_agent_and_nothing_runs_after_it(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    steps: list[Any] = [[("write", {"text": text})] for text in "abc"]
    done = run([writer], [*steps, "done"], gate=[ask_first])
    assert isinstance(done.error, ApprovalRequired)
    assert written == ["a"]
    assert len(done.model.seen) == 2
    assert done.state is not None  # the agent itself came to an end
    assert done.state["messages"][-1].type == "ai"  # a halt answers no call
    assert "who said so?" in str(done.error)
    assert done.events[-1]["status"] == "paused"


def test_siblings_of_the_call_that_halts_finish(
    lab: Any, writer: StructuredTool, written: list[str]
) -> None:
    calls = [("write", {"text": text}) for text in ("a", "b")]
    done = lab.run([writer], [calls, "done"], gate=[ask_first])
    assert isinstance(done.error, ApprovalRequired)
    assert [e["status"] for e in done.outcomes] == ["ok"] * len(written)


def keeping(sessions: list[Session]) -> Callable[..., Any]:
    """A `guard` that guards no model, and lets the test know the session."""

    def guard(model: Any, session: Session) -> Any:
        sessions.append(session)
        return model

    return guard


def test_a_session_halted_beforehand_asks_no_model(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    class Stop(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:
            stopped[0].halt(Halt("enough"))

    stopped: list[Session] = []
    done = run(
        [writer],
        [[("write", {"text": "a"})], "done"],
        guard=keeping(stopped),
        middleware=[Stop()],
    )
    assert isinstance(done.error, Halt)
    assert str(done.error) == "enough"
    assert (written, done.model.seen) == ([], [])


def test_a_session_halted_between_our_hooks_asks_no_model(run: Run, writer: StructuredTool) -> None:
    sessions: list[Session] = []

    class Stop(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            sessions[0].halt(Halt("enough"))

    done = run(
        [writer],
        ["done"],
        guard=keeping(sessions),
        middleware=[Stop()],
    )
    assert str(done.error) == "enough"
    assert done.model.seen == []


def test_an_offline_miss_names_what_differs_and_ends_the_agent(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    run([writer], [[("write", {"text": "a"})], "done"])
    done = run([writer], [[("write", {"text": "b"})], "done"], replay="offline")
    assert isinstance(done.error, ReplayMiss)
    assert "text" in str(done.error)
    assert written == ["a"]


# --- what is put on record -----------------------------------------------------------------------


def refused(done: Any) -> list[dict[str, Any]]:
    keep = ("name", "args", "slot", "call_id")
    return [
        {n: e[n] for n in keep if n in e} | {"code": e["verdict"]["code"]} for e in done.refused
    ]


def test_a_call_that_never_came_to_its_tool_is_on_record(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    script: list[Any] = [
        [("write", {"text": ["a"]}), ("write", {"text": "b"}), ("wrte", {"text": "c"})],
        "done",
    ]
    done = run([writer], script)
    assert done.error is None
    assert written == ["b"]
    wrong, missing = sorted(refused(done), key=lambda line: line["slot"])
    assert (wrong["name"], wrong["args"], wrong["code"]) == (
        "write", {"text": ["a"]}, "arguments_invalid",
    )  # fmt: skip
    assert (missing["name"], missing["code"], missing["slot"]) == ("wrte", "tool_missing", 2)
    assert missing["call_id"].startswith("call-")
    again = run([writer], script, replay="offline")
    assert again.error is None
    assert written == ["b"]
    assert len(refused(again)) == 2


def test_one_that_a_middleware_refuses_itself_is_on_record(
    run: Run, writer: StructuredTool, written: list[str]
) -> None:
    class No(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return ToolMessage("not today", tool_call_id=request.tool_call["id"], status="error")

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return self.wrap_tool_call(request, handler)

    done = run([writer], [[("write", {"text": "a"})], "done"], middleware=[No()])
    assert written == []
    (line,) = done.refused
    assert (line["verdict"]["code"], line["verdict"]["reason"]) == ("refused", "not today")


# --- a tool that is swapped behind the guard -----------------------------------------------------


class Swap(AgentMiddleware):
    """Puts another tool in, after the guard has looked."""

    def __init__(self, tool: Any, how: str) -> None:
        super().__init__()
        self.tool, self.how = tool, how

    def _swapped(self, request: Any) -> Any:
        if self.how == "override":
            return request.override(tool=self.tool)
        if self.how == "replace":
            return dataclasses.replace(request, tool=self.tool)
        with pytest.warns(DeprecationWarning, match="override"):
            request.tool = self.tool
        return request

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(self._swapped(request))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._swapped(request))


@pytest.mark.parametrize("how", ["override", "replace", "set"])
def test_a_tool_that_is_swapped_in_behind_the_guard_is_guarded(run: Run, how: str) -> None:
    ran: list[str] = []

    @tool
    def write(text: str) -> str:
        """Write a text."""
        ran.append(text)
        return "wrote"

    @tool("write")
    def bare(text: str) -> str:
        """Write a text, past the policy."""
        ran.append(f"bare {text}")
        return "wrote"

    done = run(
        [write],
        [[("write", {"text": "a"})], "done"],
        gate=[no_writing],
        middleware=[Swap(bare, how)],
    )
    assert ran == []
    assert done.session.stats.blocked == 1
    free = run([write], [[("write", {"text": "a"})], "done"], middleware=[Swap(bare, how)])
    assert free.error is None
    assert ran == ["bare a"]
    assert [e["name"] for e in free.steps] == ["write"]


def test_strict_refuses_what_langchain_would_coerce(run: Run) -> None:
    ran: list[int] = []

    @tool
    def count(n: int, when: dt.date) -> str:
        """Count."""
        ran.append(n)
        return "counted"

    script: list[Any] = [
        [("count", {"n": "3", "when": "2026-01-01"}), ("count", {"n": 3, "when": "2026-01-01"})],
        "done",
    ]
    done = run([count], script, options=Options(strict=True))
    assert ran == [3]
    (line,) = done.refused
    assert line["args"]["n"] == "3"
    assert "n: a value of type str was given, int is wanted" in done.texts[0]
    lax = run([count], script, replay="off")
    keys = {e["key"] for each in (done, lax) for e in each.steps}
    assert len(keys) == 1
