"""What an agent's tools give and take: commands, messages, artifacts, and what is injected."""

from collections.abc import Callable
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

Run = Callable[..., Any]


class Named(AgentState[Any]):
    """A state with a field of its own."""

    user: NotRequired[str]


def test_commands_replay_under_the_id_of_the_call_at_hand(run: Run) -> None:
    ran: list[str] = []

    @tool
    def rename(user: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Rename the user."""
        ran.append(call_id)
        return Command(
            update={"user": user, "messages": [ToolMessage("renamed", tool_call_id=call_id)]}
        )

    script: list[Any] = [[("rename", {"user": "ann"})], "done"]
    live = run([rename], script, state_schema=Named)
    replayed = run([rename], script, state_schema=Named, replay="offline")
    assert len(ran) == 1
    for done in (live, replayed):
        assert done.error is None
        assert done.state["user"] == "ann"
        call = done.state["messages"][1].tool_calls[0]
        assert done.state["messages"][2].tool_call_id == call["id"]
    ids = [each.state["messages"][1].tool_calls[0]["id"] for each in (live, replayed)]
    assert ids[0] != ids[1]
    assert live.state["messages"][2].content == replayed.state["messages"][2].content


def test_own_messages_and_lists_of_them_replay_too(run: Run) -> None:
    @tool
    def both(runtime: ToolRuntime) -> Any:
        """Give a message and a command."""
        call_id = runtime.tool_call_id
        assert call_id is not None
        message = ToolMessage("said", tool_call_id=call_id, artifact={"raw": b"1"})
        return [message, Command(update={"user": "ann"})]

    @tool
    def say(runtime: ToolRuntime) -> ToolMessage:
        """Give a message."""
        assert runtime.tool_call_id is not None
        return ToolMessage("said", tool_call_id=runtime.tool_call_id, artifact=(1, 2))

    script: list[Any] = [[("both", {})], [("say", {})], "done"]
    for replay in ("auto", "offline"):
        done = run([both, say], script, state_schema=Named, replay=replay)
        assert done.error is None
        assert done.state["user"] == "ann"
        tools = [m for m in done.state["messages"] if m.type == "tool"]
        assert [m.artifact for m in tools] == [{"raw": b"1"}, (1, 2)]


def test_return_direct_ends_the_agent_in_replay_too(run: Run) -> None:
    @tool(return_direct=True)
    def finish(text: str) -> str:
        """Finish."""
        return text

    script: list[Any] = [[("finish", {"text": "that is it"})], "never"]
    for replay in ("auto", "offline"):
        done = run([finish], script, replay=replay)
        assert done.state["messages"][-1].content == "that is it"
        assert len(done.model.seen) == 1


def test_state_store_and_runtime_are_injected_and_are_no_part_of_the_call(run: Run) -> None:
    seen: list[Any] = []

    @tool
    def look(
        place: str,
        user: Annotated[str, InjectedState("user")],
        state: Annotated[dict[str, Any], InjectedState],
        store: Annotated[Any, InjectedStore],
        runtime: ToolRuntime,
    ) -> str:
        """Look."""
        found = store.get(("places",), place)
        seen.append((user, len(state["messages"]), found.value, runtime.state["user"]))
        return "seen"

    class User(AgentMiddleware[Any, Any, Any]):
        state_schema = Named

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
            return {"user": "ann"}

    store = InMemoryStore()
    store.put(("places",), "here", {"sunny": True})
    script: list[Any] = [[("look", {"place": "here"})], "done"]
    for replay in ("auto", "offline"):
        done = run([look], script, middleware=[User()], agent_store=store, replay=replay)
        assert done.error is None
        (step,) = done.steps
        assert step["args"] == {"place": "here"}
    assert seen == [("ann", 2, {"sunny": True}, "ann")]


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_value_that_data_cannot_hold_says_so_and_halts_the_replay(run: Run) -> None:
    class Thing:
        """Not data."""

    @tool(response_format="content_and_artifact")
    def make() -> tuple[str, Any]:
        """Make a thing."""
        return "made", Thing()

    script: list[Any] = [[("make", {})], "done"]
    live = run([make], script)
    assert live.error is None
    (outcome,) = live.outcomes
    assert "Thing has no encoding" in outcome["lossy"]
    replayed = run([make], script, replay="offline")
    assert "Thing has no encoding" in str(replayed.error)
