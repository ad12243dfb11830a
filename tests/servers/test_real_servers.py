"""Real servers by real clients: seen the same through the proxy, and offline without the server."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .real import CLIENTS, PARTIES, ROLLCAGE, node, play, python


class Case(NamedTuple):
    command: Callable[[Path], list[str]]
    story: Callable[[Path], list[Any]]
    prepare: Callable[[Path], object] = lambda folder: None


def repository(folder: Path) -> None:
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "one"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    (folder / "new.txt").write_text("new")


ENTITY = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
THOUGHT = {"thought": "t", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
NOWHERE = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Mars/One"}

CASES = {
    "filesystem": Case(
        lambda folder: node("filesystem", str(folder)),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "write_file", {"path": f"{folder}/a.txt", "content": "one"}],
            ["call_tool", "read_text_file", {"path": f"{folder}/a.txt"}],
            ["call_tool", "write_file", {"path": f"{folder}/a.txt"}],  # refused by the server
            ["call_tool", "read_text_file", {"path": "/etc/passwd"}],
            ["call_tool", "no_such_tool", {}],
        ],
    ),
    "everything": Case(
        lambda folder: node("everything"),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "echo", {"message": "<b>\x1b[31m"}],
            ["call_tool", "get-sum", {"a": 1, "b": 2.5}],
            ["call_tool", "get-structured-content", {"location": "Chicago"}],
            ["call_tool", "trigger-long-running-operation", {"duration": 1, "steps": 3}],
            ["call_tool", "trigger-sampling-request", {"prompt": "x", "maxTokens": 10}],
            ["call_tool", "get-tiny-image", {}],
            ["list_resources"],
            ["list_resource_templates"],
            ["read_resource", "demo://resource/dynamic/text/1"],
            ["list_prompts"],
            ["get_prompt", "simple-prompt"],
            ["get_prompt", "args-prompt", {"city": "Paris"}],
            ["send_ping"],
        ],
    ),
    "memory": Case(
        lambda folder: node("memory"),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "create_entities", {"entities": [ENTITY]}],
            ["call_tool", "read_graph", {}],
        ],
    ),
    "sequential-thinking": Case(
        lambda folder: node("sequential-thinking"),
        lambda folder: [
            ["list_tools"],
            [
                "call_tool",
                "sequentialthinking",
                THOUGHT,
            ],
        ],
    ),
    "git": Case(
        lambda folder: python("old", "mcp-server-git", "--repository", str(folder)),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "git_status", {"repo_path": str(folder)}],
            ["call_tool", "git_add", {"repo_path": str(folder), "files": ["new.txt"]}],
            ["call_tool", "git_diff_staged", {"repo_path": str(folder)}],
        ],
        repository,
    ),
    "sqlite": Case(
        lambda folder: python("old", "mcp-server-sqlite", "--db-path", str(folder / "x.db")),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "create_table", {"query": "CREATE TABLE t (a int)"}],
            ["call_tool", "write_query", {"query": "INSERT INTO t VALUES (1)"}],
            ["call_tool", "read_query", {"query": "SELECT * FROM t"}],
            ["call_tool", "read_query", {"query": "SELECT * FROM nowhere"}],
        ],
    ),
    "time": Case(
        lambda folder: python("old", "mcp-server-time"),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "convert_time", NOWHERE],
            ["call_tool", "get_current_time", {"timezone": "UTC"}],
        ],
    ),
    "of pages": Case(
        lambda folder: python("old", "python", str(PARTIES / "old_server.py")),
        lambda folder: [
            ["list_tools"],
            ["list_tools", "1"],
            ["list_tools", "2"],
            ["call_tool", "tool-2", {}],
        ],
    ),
    "of line 2.x": Case(
        lambda folder: python("new", "python", str(PARTIES / "new_server.py")),
        lambda folder: [
            ["list_tools"],
            ["call_tool", "add", {"a": 1, "b": 2}],
            ["call_tool", "work", {"steps": 3}],
            ["call_tool", "fail", {}],
            ["call_tool", "add", {"a": "x", "b": 2}],
            ["list_prompts"],
            ["get_prompt", "ask", {"what": "this"}],
            ["read_resource", "note://one"],
        ],
    ),
}  # fmt: skip
NEWER = {"filesystem", "everything", "git"}
BOTH = [  # each server by a client of either line, one server by all
    *((server, "new auto" if server in NEWER else "old") for server in CASES),
    *(("of line 2.x", client) for client in CLIENTS[1:]),
]
TELL_THE_TIME = {"time", "everything"}  # one answer of each: the same offline alone


@pytest.mark.parametrize(("server", "client"), BOTH, ids=[" by ".join(each) for each in BOTH])
def test_a_client_sees_the_same_through_the_proxy_and_offline(
    tmp_path: Path, server: str, client: str
) -> None:
    case = CASES[server]
    seen = []
    for folder in (tmp_path / "work", tmp_path / "again"):
        folder.mkdir()
        case.prepare(folder)
    # The same folder for both, since its name is in the answers: made anew in between.
    work, store = tmp_path / "work", str(tmp_path / "store")
    story, command = case.story(work), case.command(work)
    env = {"MEMORY_FILE_PATH": str(work / "memory.json"), "ROLLCAGE_STORE": store}
    seen.append(play(client, story, command, **env))
    work.rename(tmp_path / "direct")
    (tmp_path / "again").rename(work)
    proxy = [*ROLLCAGE, "mcp", "run", "--name", "story"]
    seen.append(play(client, story, [*proxy, "--", *command], **env))
    work.rename(tmp_path / "guarded")
    seen.append(
        play(client, story, [*proxy, "--replay", "offline", "--", "/no/such/server"], **env)
    )
    assert seen[2] == seen[1]
    told = [each for each in zip(*seen[:2], strict=True) if each[0] != each[1]]
    assert len(told) == (server in TELL_THE_TIME), told
    assert len(seen[0]) >= len(story)


ASKS = """
version = 1
name = "sums"
default = "allow"

[[rules]]
id = "sums"
tools = ["add"]
decision = "ask"
reason = "sums are dear"
"""


@pytest.mark.parametrize("client", CLIENTS[1:])
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_the_person_at_an_official_client_decides(
    tmp_path: Path, client: str, decision: str
) -> None:
    """By elicitation in the older era, by `input_required` in the newer one."""
    policy = tmp_path / "policy.toml"
    policy.write_text(ASKS)
    command = python("new", "python", str(PARTIES / "new_server.py"))
    store = str(tmp_path / "store")
    proxy = [*ROLLCAGE, "mcp", "run", "--store", store, "--policy", str(policy), "--", *command]
    story = [["call_tool", "add", {"a": 1, "b": 2}]]
    asked, answer = play(client, story, proxy, DECISION=decision)
    assert "sums are dear" in asked[1]
    assert answer["is_error"] is (decision == "reject")
