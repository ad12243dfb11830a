"""`rollcage show`: the steps that are asked for, as a tree, and models as people read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, tool
from rollcage_adapter import Answer, ToolRequest

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_only_what_is_asked_for(cli: Cli, record: Record) -> None:
    run = record()

    def steps(*options: str) -> list[int]:
        return [each["step"] for each in cli("show", run, "--json", *options).data["steps"]]

    assert steps("--tool", "put") == [2, 6, 8]
    assert steps("--tool", "lo*") == [1, 3]
    assert steps("--state", "blocked", "--state", "FAILED") == [4]
    assert steps("--grep", "HELLO ann") == [3]
    assert steps("--since", "1h") == [*range(1, 9)]
    assert steps("--since", "2999-01-01") == []
    assert steps("--agent", "nobody") == []
    assert "3 of 8 steps." in cli("show", run, "--tool", "put").out
    assert "No such steps." in cli("show", run, "--agent", "nobody").out


def test_a_state_that_there_is_not(cli: Cli, record: Record) -> None:
    result = cli("show", record(), "--state", "lost")
    assert result.code == 2
    assert "'lost' is no state of a step: hit, ran" in result.err


def test_a_tree(cli: Cli, record: Record) -> None:
    lines = cli("show", record(), "--tree").out.splitlines()
    at = next(i for i, line in enumerate(lines) if "5 ran outer" in line)
    assert lines[at + 1].strip(" │").startswith('└─ 6 ran put(path="nested"')
    assert "branch side" in "\n".join(lines)


def _ask_model(messages: list[dict[str, str]]) -> dict[str, list[str]]:
    return {"opaque": [each["role"] for each in messages]}


ASK_MODEL: Any = tool(effect="read", name="ask_model")(_ask_model)


@pytest.fixture
def talk(store: Path) -> Callable[[str], None]:
    """A model that says something and asks for a tool."""

    def talk(said: str) -> None:
        asked = ToolRequest("look", '{"path": "a.txt"}', "call_1")
        with Session("talk", store=store) as session:
            session.run_call(
                ASK_MODEL.__rollcage_contract__,
                {
                    "messages": [
                        {"role": "system", "content": "s"},
                        {"role": "user", "content": said},
                    ]
                },
                lambda **_: {"opaque": ["parts"]},
                kind="model",
                answer=lambda _: Answer(said, tool_calls=(asked,)),
            )

    return talk


def test_a_model_row_has_its_last_message_and_its_calls(cli: Cli, talk: Any) -> None:
    talk("look it up")
    out = cli("show").out
    assert '(1 earlier) user: "look it up"' in out
    assert '"look it up" → look(path="a.txt")' in out
    assert "opaque" not in out


def test_what_a_model_says_is_text_only(cli: Cli, talk: Any, evil: str) -> None:
    talk(evil)
    for options in ((), ("--tree",), ("--grep", "abc")):
        result = cli("show", *options)
        assert result.code == 0
        assert "[red]x[/red]" in result.out
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(result.out)
