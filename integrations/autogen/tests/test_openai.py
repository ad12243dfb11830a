"""AutoGen's own OpenAI client, over real HTTP: recorded, then replayed with the server gone."""

from typing import Any

import pytest
from autogen_core.models import ModelFamily, ModelInfo, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from rollcage_autogen import ReplayModel, guard_model, guard_tools
from rollcage_conformance.openai_server import Failure, OpenAIServer, Reply

HI = [UserMessage(content="Hi", source="user")]
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
)


def client(url: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="scripted", base_url=url, api_key="none", max_retries=0, model_info=INFO
    )


def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


def script() -> list[Reply | Failure]:
    return [
        Reply("I send both", tool_calls=[("send", {"text": "a"}), ("send", {"text": "é"})]),
        Reply("all done"),
    ]


async def play(lab: Any, session: Any, url: str, *, streamed: bool) -> Any:
    model = client(url)
    agent = lab.agent(
        model,
        session,
        tools=guard_tools([FunctionTool(send, "Send.")], session),
        model_client_stream=streamed,
    )
    ended = await agent.run(task="Go.")
    await model.close()
    return ended


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_an_agent_replays_without_its_server(
    lab: Any, within: Any, results: Any, *, streamed: bool
) -> None:
    with OpenAIServer(script()) as server, lab.session() as session:
        recorded = await within(play(lab, session, server.url, streamed=streamed))
    assert len(server.requests) == 2
    for again in (streamed, not streamed):  # either way it was delivered
        with lab.session(replay="offline") as session:
            replayed = await within(play(lab, session, server.url, streamed=again))
        assert replayed.messages[-1].to_text() == "all done"
        assert results(replayed) == results(recorded)
        assert results(replayed) == [("sent a", False), ("sent é", False)]
        assert session.stats.misses == 0
    assert len(server.requests) == 2
    asked, ended = (step["outcome"]["answer"] for step in lab.steps(session, "model"))
    assert [call["name"] for call in asked["tool_calls"]] == ["send", "send"]
    assert asked["reasoning"] == "I send both"  # where this client puts text beside calls
    assert ended["text"] == "all done"


async def test_the_recorded_decisions_drive_an_agent(lab: Any, within: Any, results: Any) -> None:
    with OpenAIServer(script()) as server, lab.session() as session:
        recorded = await within(play(lab, session, server.url, streamed=False))
    with lab.session(replay="offline") as session:
        agent = lab.agent(
            ReplayModel(session), tools=guard_tools([FunctionTool(send, "Send.")], session)
        )
        driven = await within(agent.run(task="Something else."))
    assert results(driven) == results(recorded)


class Out(BaseModel):
    number: int


@pytest.mark.filterwarnings(
    # openai's own `parse` serialises its message with the parsed object in an untyped field
    "ignore:Pydantic serializer warnings:UserWarning"
)
async def test_usage_and_structured_output_come_back(lab: Any, within: Any) -> None:
    replies = [Reply('{"number": 3}', usage=(5, 2))]
    with OpenAIServer(replies) as server, lab.session() as session:
        model = client(server.url)
        recorded = await within(guard_model(model, session).create(HI, json_output=Out))
        await model.close()
    with lab.session(replay="offline") as session:
        model = client(server.url)
        replayed = await within(guard_model(model, session).create(HI, json_output=Out))
        await model.close()
        assert session.stats.tokens_saved == 7
    assert replayed == recorded
    assert Out.model_validate_json(str(replayed.content)) == Out(number=3)


async def test_an_error_of_the_api_replays_as_an_error(lab: Any, within: Any) -> None:
    texts = []
    with OpenAIServer([Failure(429, "slow down")]) as server:
        for replay in ("off", "offline"):
            with lab.session(replay=replay) as session:
                model = client(server.url)
                with pytest.raises(Exception, match="slow down") as raised:
                    await within(guard_model(model, session).create(HI))
                texts.append(str(raised.value))
                await model.close()
    assert texts[0] in texts[1]
    assert len(server.requests) == 1
