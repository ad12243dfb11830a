"""Teams: each agent's calls stand in its own turns, whoever else is at work."""

import asyncio
from typing import Any

import pytest
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_core.tools import FunctionTool, StaticStreamWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from rollcage import Halt
from rollcage_autogen import ReplayModel, RollcageWorkbench, guard_model, guard_tools


def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


async def look(place: str) -> str:
    """Look at a place."""
    await asyncio.sleep(0)
    return f"saw {place}"


TOOLS = [FunctionTool(send, "Send."), FunctionTool(look, "Look.")]


def tools(session: Any) -> Any:
    return guard_tools(TOOLS, session, effects={"look": "read"})


def texts(ended: Any) -> list[str]:
    return [message.to_text() for message in ended.messages]


def round_robin(lab: Any, session: Any, clients: Any) -> Any:
    agents = [
        lab.agent(client, session, name=name, tools=tools(session))
        for name, client in zip(("ann", "bob"), clients, strict=True)
    ]
    return RoundRobinGroupChat(agents, termination_condition=TextMentionTermination("DONE"))


def selector(lab: Any, session: Any, clients: Any) -> Any:
    *clients, choosing = clients
    agents = [
        lab.agent(client, session, name=name, tools=tools(session))
        for name, client in zip(("ann", "bob"), clients, strict=True)
    ]
    return SelectorGroupChat(
        agents,
        guard_model(choosing, session),
        termination_condition=TextMentionTermination("DONE"),
        allow_repeated_speaker=True,
    )


def swarm(lab: Any, session: Any, clients: Any) -> Any:
    agents = [
        lab.agent(client, session, name=name, tools=tools(session), handoffs=[Handoff(target=to)])
        for name, to, client in zip(("ann", "bob"), ("bob", "ann"), clients, strict=True)
    ]
    return Swarm(agents, termination_condition=TextMentionTermination("DONE"))


TEAMS: dict[str, Any] = {
    "round robin": (
        round_robin,
        (
            [[("send", {"text": "a"}), ("look", {"place": "b"})], "over to bob"],
            [[("send", {"text": "a"})], "DONE"],
        ),
    ),
    "selector": (
        selector,
        (
            [[("send", {"text": "a"}), ("send", {"text": "a"})], "over to bob"],
            [[("look", {"place": "a"})], "DONE"],
            ["ann", "bob"],
        ),
    ),
    "swarm": (
        swarm,
        (
            [[("send", {"text": "a"})], [("transfer_to_bob", {})]],
            [[("look", {"place": "a"})], "DONE"],
        ),
    ),
}


@pytest.mark.parametrize("kind", TEAMS)
async def test_a_team_is_recorded_and_replayed(lab: Any, within: Any, kind: str) -> None:
    make, scripts = TEAMS[kind]

    def clients() -> list[Any]:
        made = [lab.client(*script) for script in scripts]
        if kind == "selector":
            made[-1] = ReplayChatCompletionClient(scripts[-1])
        return made

    with lab.session() as session:
        recorded = await within(make(lab, session, clients()).run(task="Go."))
    assert texts(recorded)[-1] == "DONE"
    assert {step["agent"] for step in lab.steps(session)} == {"ann", "bob"}
    with lab.session(replay="offline") as session:
        asked = clients()
        replayed = await within(make(lab, session, asked).run(task="Go."))
        assert session.stats.misses == 0
    assert texts(replayed) == texts(recorded)
    assert [client.asked for client in asked[:2]] == [[], []]


async def test_each_agent_of_a_team_can_be_driven_by_its_own_answers(lab: Any, within: Any) -> None:
    make, scripts = TEAMS["round robin"]
    with lab.session() as session:
        recorded = await within(
            make(lab, session, [lab.client(*script) for script in scripts]).run(task="Go.")
        )
    with lab.session(replay="offline") as session:
        models = [ReplayModel(session, agent=name) for name in ("ann", "bob")]
        replayed = await within(make(lab, session, models).run(task="Something else."))
    assert texts(replayed)[1:] == texts(recorded)[1:]


async def test_a_halted_session_ends_a_team(lab: Any, within: Any) -> None:
    with pytest.raises(Halt, match="enough"):
        async with lab.session() as session:

            def stop() -> str:
                session.halt(Halt("enough"))
                return "stopped"

            agent = lab.agent(
                lab.client([("stop", {})], "end"),
                session,
                tools=guard_tools([FunctionTool(stop, "")], session),
            )
            team = RoundRobinGroupChat([agent], max_turns=10)
            with pytest.raises(RuntimeError, match="SessionHalted"):
                await within(team.run(task="Go."))


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded models", "plain models"])
async def test_agents_at_once_keep_their_turns_apart(
    lab: Any, within: Any, results: Any, *, guarded: bool
) -> None:
    """Both have worked in this task before: what that left behind belongs to neither."""
    script = [[("look", {"place": "x"}), ("look", {"place": "y"})]] * 5
    count = 0

    async def numbered(place: str) -> str:
        nonlocal count
        count += 1
        mine = count
        await asyncio.sleep(0)
        return f"{place} {mine}"

    numbered.__name__ = "look"

    async def play(session: Any) -> list[Any]:
        def agent(name: str) -> Any:
            inner = guard_tools([FunctionTool(numbered, "")], session)
            return lab.agent(
                lab.client(*script, "end"), session if guarded else None, name=name, tools=inner
            )

        async def in_branch(name: str) -> Any:
            with session.branch(name):
                return results(await agent(name).run(task=f"Go, {name}."))

        await agent("first").run(task="Go, first.")
        return list(await asyncio.gather(in_branch("ann"), in_branch("bob")))

    with lab.session() as session:
        recorded = await within(play(session))
    for name in ("ann", "bob"):
        steps = [step for step in lab.steps(session) if step.get("branch") == name]
        assert [step["slot"] for step in steps] == [0, 1] * 5
        assert len({step["turn"] for step in steps}) == 5
    with lab.session(replay="offline") as session:
        assert await within(play(session)) == recorded
    assert count == 30


async def test_call_ids_that_recur_do_not_mix(lab: Any, within: Any) -> None:
    """Two agents whose models number their calls alike."""

    def calling(*places: str, ids: list[str]) -> CreateResult:
        calls = [
            FunctionCall(id=each, name="look", arguments=f'{{"place": "{place}"}}')
            for place, each in zip(places, ids, strict=True)
        ]
        usage = RequestUsage(1, 1)
        return CreateResult(
            finish_reason="function_calls", content=calls, usage=usage, cached=False
        )

    with lab.session() as session:
        agents = [
            lab.agent(
                lab.client(calling(*places, ids=ids), "end"),
                session,
                name=name,
                workbench=RollcageWorkbench(
                    StaticStreamWorkbench([TOOLS[1]]), session, effects={"look": "read"}
                ),
            )
            for name, places, ids in (
                ("ann", "ab", ["1", "2"]),
                ("bob", "ba", ["2", "1"]),
                ("cid", "cc", ["1", "1"]),
            )
        ]
        await within(asyncio.gather(*(agent.run(task="Go.") for agent in agents)))
    turns: dict[int, list[tuple[int, str]]] = {}
    for step in lab.steps(session):
        turns.setdefault(step["turn"], []).append((step["slot"], step["args"]["place"]))
    found = sorted([place for _, place in sorted(each)] for each in turns.values())
    assert found == [["a", "b"], ["b", "a"], ["c", "c"]]
