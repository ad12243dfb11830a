"""`rollcage mcp install`: a client's servers run through the guard, and it can be taken back."""

import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from hypothesis import given
from hypothesis import strategies as st
from rollcage_mcp.install import commands
from rollcage_mcp.install.clients import CLIENTS
from rollcage_mcp.install.entries import Config
from rollcage_mcp.install.json_text import JsonText

PYTHON = sys.executable
Write = Callable[[str, str], Path]

DESKTOP = """{
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ann/work"],
      "env": { "API_KEY": "sk-very-secret" }
    },
    "time": {
      "command": "uvx",
      "args": [
        "mcp-server-time",
        "--local-timezone=Europe/Berlin"
      ]
    },
    "plain": { "command": "/usr/bin/plain" },
    "remote": { "type": "http", "url": "https://mcp.example.org/mcp" }
  },
  "globalShortcut": "Ctrl+Space"
}
"""
VSCODE = """{
  // who asks for the key
  "inputs": [{ "type": "promptString", "id": "key", "password": true }],
  "servers": {
    /* files of the project */
    "files": {
      "type": "stdio",
      "command": "npx", // from npm
      "args": [
        // the folder comes last
        "-y", "server-filesystem",
        "${workspaceFolder}", /* here */
      ],
      "env": { "KEY": "${input:key}" },
    },
  },
}
"""
ZED = """// Zed settings
{
  "theme": "One Dark",
  "context_servers": {
    "files": { "source": "custom", "command": "npx", "args": ["server-filesystem"], "env": {} },
    "old": { "command": { "path": "node", "args": ["server.js"], "env": { "TOKEN": "abc" } } },
    "by-extension": { "settings": { "database_url": "postgresql://ann:secret@localhost/db" } }
  }
}
"""
CODEX = """# how Codex works here
model = "gpt-5"
approval_policy = 'on-request'   # asks

[mcp_servers.files]   # of the project
command = "npx"  # from npm
args = [
    "-y",
    "server-filesystem",  # the server
    "/home/ann/work",
]
startup_timeout_sec = 20

[mcp_servers.files.env]
API_KEY = "sk-very-secret"

[mcp_servers."bare one"]
command = '/usr/bin/plain'
[mcp_servers."bare one".env]
TOKEN = "abc"

[mcp_servers.remote]
url = "https://mcp.example.org/mcp"
bearer_token_env_var = "TOKEN"

[tui]
notifications = true
"""
OPENCODE = """{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "files": {
      "type": "local",
      "command": ["npx", "-y", "server-filesystem"],
      "enabled": true,
      "environment": { "TOKEN": "abc" },
    },
    "far": { "type": "remote", "url": "https://mcp.example.org" },
  },
}
"""
GEMINI = (
    '{"selectedAuthType":"oauth-personal","mcpServers":{"files":{"command":"npx","args":[],'
    '"trust":false},"far":{"httpUrl":"https://mcp.example.org"}}}'
)
CLAUDE_CODE = """{
  "numStartups": 12,
  "oauthAccount": { "accountUuid": "secret-uuid", "emailAddress": "ann@example.org" },
  "mcpServers": {
    "files": { "type": "stdio", "command": "npx", "args": ["server-filesystem"], "env": {} }
  },
  "projects": {
    "/home/ann/work": {
      "allowedTools": [],
      "mcpServers": { "git": { "type": "stdio", "command": "uvx", "args": ["mcp-server-git"] } }
    },
    "/home/ann/other": { "allowedTools": [] }
  }
}
"""
PLAIN = '{"mcpServers": {\n"files": {\n"command": "npx",\n"args": ["a"]\n}\n}\n}'.replace(
    "\n", "\r\n\t"
)

FILES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", DESKTOP),
    "claude-code": (".claude.json", CLAUDE_CODE),
    "cursor": (".cursor/mcp.json", PLAIN),
    "vscode": (".config/Code/User/mcp.json", VSCODE),
    "windsurf": (".codeium/windsurf/mcp_config.json", DESKTOP),
    "zed": (".config/zed/settings.json", ZED),
    "codex": (".codex/config.toml", CODEX),
    "gemini": (".gemini/settings.json", GEMINI),
    "cline": (
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        DESKTOP,
    ),
    "roo": (
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        DESKTOP,
    ),
    "opencode": (".config/opencode/opencode.jsonc", OPENCODE),
    "amazon-q": (".aws/amazonq/mcp.json", DESKTOP),
    "lm-studio": (".lmstudio/mcp.json", DESKTOP),
}


def said(client: str, path: Path) -> list[tuple[str, ...]]:
    """How each server is started."""
    return [each.starts for each in Config(CLIENTS[client], path.read_text()).entries]


def read(path: Path) -> Any:
    text = path.read_text()
    return tomllib.loads(text) if path.suffix == ".toml" else JsonText(text).data


@pytest.mark.parametrize("client", FILES)
def test_every_client_is_guarded_and_restored_to_the_byte(
    client: str, cli: Cli, config: Write, home: Path
) -> None:
    path = config(*FILES[client])
    before, starts = path.read_bytes(), said(client, path)
    shown = cli("mcp", "install", client, "--yes")
    assert shown.code == 0, shown.err
    for secret in ("sk-very", "abc", "ann:secret", "secret-uuid", "ann@example"):
        assert secret not in shown.out
    guard = (str(home.parent / "venv/bin/python"), "-m", "rollcage", "mcp", "run", "--store")
    for old, new in zip(starts, said(client, path), strict=True):
        if old:
            assert new == (*guard, str(home / ".rollcage"), "--", *old)
    comments = [part for part in before.decode().split() if part in ("//", "/*", "#")]
    assert [p for p in path.read_text().split() if p in ("//", "/*", "#")] == comments

    written = path.read_bytes()
    again = cli("mcp", "install", client, "--yes")
    assert again.code == 0
    assert "Nothing to do" in again.out
    assert path.read_bytes() == written

    assert cli("mcp", "uninstall", client, "--yes").code == 0
    assert path.read_bytes() == before
    assert "Nothing to do" in cli("mcp", "uninstall", client, "--yes").out


def test_only_how_a_server_is_started_changes(cli: Cli, config: Write) -> None:
    path = config(*FILES["codex"])
    before = read(path)
    cli("mcp", "install", "codex", "--yes")
    after = read(path)
    for data in (before, after):
        for each in data["mcp_servers"].values():
            for changed in ("command", "args"):
                each.pop(changed, None)
    assert after == before


def test_one_server_by_name(cli: Cli, config: Write, home: Path) -> None:
    path = config(*FILES["claude-desktop"])
    policy = config("policy.toml", 'version = 1\nname = "p"\ndefault = "allow"\n')
    options = ["--policy", policy, "--facade", "ops", "--pack", "filesystem", "--store", "here"]
    done = cli("mcp", "install", "claude-desktop", "files", *options, "--yes", "--json")
    assert done.code == 0, done.err
    assert done.data["guarded"] == ["files"]
    assert done.data["written"] is True
    servers = read(path)["mcpServers"]
    assert servers["files"]["args"][2:] == [
        "mcp", "run", "--store", str(home.parent / "here"), "--policy", str(policy),
        "--facade", "ops", "--pack", "filesystem",
        "--", "npx", "-y", "@modelcontextprotocol/server-filesystem", "/home/ann/work",
    ]  # fmt: skip
    assert servers["time"]["command"] == "uvx"


def test_what_was_installed_runs_the_server(
    cli: Cli, config: Write, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client would start it, with the server's own words behind --, and its environment."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    says = "import os, sys; print(os.environ['OWN'], *sys.argv[1:], file=sys.stderr)"
    own = {"command": PYTHON, "args": ["-c", says, "--x", "--", "-y"], "env": {"OWN": "seen"}}
    path = config(".cursor/mcp.json", json.dumps({"mcpServers": {"a": own}}))
    cli("mcp", "install", "cursor", "--yes")
    found = read(path)["mcpServers"]["a"]
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    ran = subprocess.run(
        [found["command"], *found["args"]],
        input=json.dumps(hello) + "\n",
        env={**os.environ, **found["env"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "seen --x -- -y" in ran.stderr
    assert "the server has ended" in json.loads(ran.stdout.splitlines()[0])["error"]["message"]
    assert len(cli("runs", "--store", home / ".rollcage", "--json").data["runs"]) == 1


def test_a_preview_alone_writes_nothing(cli: Cli, config: Write) -> None:
    path = config(*FILES["claude-desktop"])
    shown = cli("mcp", "install", "claude-desktop")
    assert shown.code == 2
    assert "pass --yes" in shown.err
    assert '-      "command": "npx",' in shown.out
    assert '"command": "…' not in shown.out
    assert cli("mcp", "install", "claude-desktop", "--json").code == 2
    assert path.read_text() == DESKTOP
    assert not list(path.parent.glob(".*"))


def test_a_person_is_asked(cli: Cli, config: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(*FILES["zed"])
    monkeypatch.setattr(commands, "is_terminal", lambda _: True)
    monkeypatch.setattr("typer.confirm", lambda _: False)
    assert cli("mcp", "install", "zed").code == 1
    assert path.read_text() == ZED
    monkeypatch.setattr("typer.confirm", lambda _: True)
    assert cli("mcp", "install", "zed").code == 0
    assert path.read_text() != ZED


def test_a_change_between_preview_and_writing_is_not_lost(
    cli: Cli, config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(*FILES["vscode"])
    changed = VSCODE.replace("npx", "bunx")

    def meanwhile(_: str) -> bool:
        path.write_text(changed)
        return True

    monkeypatch.setattr(commands, "is_terminal", lambda _: True)
    monkeypatch.setattr("typer.confirm", meanwhile)
    refused = cli("mcp", "install", "vscode")
    assert refused.code == 2
    assert "was changed meanwhile" in refused.err
    assert path.read_text() == changed
    assert not [each for each in path.parent.iterdir() if each != path]


def test_what_else_was_changed_stays(cli: Cli, config: Write) -> None:
    path = config(*FILES["codex"])
    cli("mcp", "install", "codex", "--yes")
    path.write_text(path.read_text() + '\n[mcp_servers.new]\ncommand = "new"  # mine\n')
    assert cli("mcp", "uninstall", "codex", "--yes").code == 0
    assert path.read_text() == CODEX + '\n[mcp_servers.new]\ncommand = "new"  # mine\n'


def test_a_file_that_the_client_has_laid_out_anew_is_restored(cli: Cli, config: Write) -> None:
    path = config(*FILES["claude-desktop"])
    cli("mcp", "install", "claude-desktop", "--yes")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert cli("mcp", "uninstall", "claude-desktop", "--yes").code == 0
    assert json.loads(path.read_text()) == json.loads(DESKTOP)


def test_a_changed_guard_is_not_taken_back(cli: Cli, config: Write) -> None:
    path = config(*FILES["claude-desktop"])
    cli("mcp", "install", "claude-desktop", "--yes")
    text = path.read_text().replace("/home/ann/work", "/home/ann/other")
    path.write_text(text)
    refused = cli("mcp", "uninstall", "claude-desktop", "--yes")
    assert refused.code == 2
    assert "files" in refused.err
    assert "changed since it was installed: args" in refused.err
    assert path.read_text() == text
    assert cli("mcp", "uninstall", "claude-desktop", "time", "--yes").code == 0
    assert read(path)["mcpServers"]["time"]["command"] == "uvx"


def test_what_was_not_installed_by_it_is_not_taken_back(cli: Cli, config: Write) -> None:
    text = '{"mcpServers": {"a": {"command": "rollcage", "args": ["mcp", "run", "--", "x"]}}}'
    path = config(".cursor/mcp.json", text)
    assert "guarded already" in cli("mcp", "install", "cursor", "--yes").out
    refused = cli("mcp", "uninstall", "cursor", "a", "--yes")
    assert refused.code == 2
    assert "not installed by this command" in refused.err
    assert "Nothing to do" in cli("mcp", "uninstall", "cursor", "--yes").out
    assert path.read_text() == text


def test_a_server_that_is_gone_is_forgotten(cli: Cli, config: Write, home: Path) -> None:
    path = config(".cursor/mcp.json", PLAIN)
    cli("mcp", "install", "cursor", "--yes")
    path.write_text('{"mcpServers": {}}')
    assert "Nothing to do" in cli("mcp", "uninstall", "cursor", "--yes").out
    kept = json.loads((home / ".local/state/rollcage/mcp-install.json").read_text())
    assert kept["files"] == {}


def test_links_modes_and_comments_of_the_folder_stay(cli: Cli, config: Write, home: Path) -> None:
    real = config("dotfiles/mcp.json", PLAIN)
    real.chmod(0o640)
    link = home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert cli("mcp", "install", "cursor", "--yes").code == 0
    assert link.is_symlink()
    assert "rollcage" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert cli("mcp", "uninstall", "cursor", "--yes").code == 0
    assert real.read_bytes() == PLAIN.encode()
    kept = home / ".local/state/rollcage/mcp-install.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_read_only_file_stays(cli: Cli, config: Write) -> None:
    path = config(".cursor/mcp.json", PLAIN)
    path.chmod(0o444)
    refused = cli("mcp", "install", "cursor", "--yes")
    assert refused.code == 2
    assert "is read-only: chmod u+w" in refused.err
    assert path.read_bytes() == PLAIN.encode()


def test_a_disk_that_fails_leaves_the_file(
    cli: Cli, config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(".cursor/mcp.json", PLAIN)
    kept = os.fsync

    def full(number: int) -> None:
        written = Path(f"/proc/self/fd/{number}").readlink()
        if path.parent in (written, written.parent):
            raise OSError(28, "No space left on device")
        kept(number)

    monkeypatch.setattr(os, "fsync", full)
    refused = cli("mcp", "install", "cursor", "--yes")
    assert refused.code == 2
    assert "No space left" in refused.err
    assert path.read_bytes() == PLAIN.encode()
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]
    monkeypatch.setattr(os, "fsync", kept)
    assert "Nothing to do" in cli("mcp", "uninstall", "cursor", "--yes").out


BROKEN = {
    "empty in the middle": '{"mcpServers": {',
    "no json": "mcpServers: nope",
    "no object": "[1]",
    "twice": '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}',
    "deep": "[" * 5_000 + "]" * 5_000,
    "torn comment": '{"a": 1 /* ',
    "no comma": '{"a": 1 "b": 2}',
    "more": "{} {}",
    "bad text": '{"a": "\\q"}',
    "number": '{"a": 1.2.3}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_stays_as_it_is(text: str, cli: Cli, config: Write) -> None:
    path = config(".cursor/mcp.json", text)
    refused = cli("mcp", "install", "cursor", "--yes")
    assert refused.code == 2
    assert str(path) in refused.err
    assert path.read_text() == text
    assert cli("mcp", "install", "--list").code == 1


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b'{"a": "\xff"}'])
def test_bytes_that_are_no_text(raw: bytes, cli: Cli, config: Write) -> None:
    path = config(".cursor/mcp.json", "")
    path.write_bytes(raw)
    assert cli("mcp", "install", "cursor", "--yes").code == 2
    assert path.read_bytes() == raw


def test_broken_toml(cli: Cli, config: Write) -> None:
    for text in ("a = ", "a = 1\na = 2", "x = " + "[" * 3_000):
        config(".codex/config.toml", text)
        refused = cli("mcp", "install", "codex", "--yes")
        assert refused.code == 2
        assert "config.toml" in refused.err


def test_servers_that_can_not_be_guarded(cli: Cli, config: Write) -> None:
    servers = {
        "line": {"command": "npx -y server"},
        "numbers": {"command": "x", "args": [1]},
        "words": {"command": "x", "args": "y"},
        "nothing": None,
        "own": {"command": "/venv/bin/rollcage", "args": ["mcp", "ops"]},
        "far": {"url": "https://x.example.org"},
    }
    text = json.dumps({"mcpServers": servers})
    path = config(".cursor/mcp.json", text)
    listed = cli("mcp", "install", "cursor", "--list", "--json").data["servers"]
    whys = {each["server"]: each["why"] for each in listed}
    assert "command line" in whys["line"]
    assert whys["numbers"] == whys["words"] == "its command and arguments are not strings"
    assert whys["nothing"] == "it names no command"
    assert "Rollcage itself" in whys["own"]
    assert whys["far"] == "it is reached by HTTP"
    assert "Nothing to do" in cli("mcp", "install", "cursor", "--yes").out
    assert path.read_text() == text
    assert "is reached by HTTP" in cli("mcp", "install", "cursor", "far", "--yes").err


def test_list_shows_all_clients(cli: Cli, config: Write) -> None:
    for name, text in FILES.values():
        config(name, text)
    cli("mcp", "install", "codex", "--yes")
    shown = cli("mcp", "install", "--list", "--json").data["servers"]
    assert {each["client"] for each in shown} == set(CLIENTS)
    states = {each["state"] for each in shown if each["client"] == "codex"}
    assert states == {"guarded", "left"}
    table = cli("mcp", "install", "--list")
    assert table.code == 0
    assert "git (/home/ann/work)" in table.out
    assert "sk-very" not in table.out


def test_a_project(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "work" / ".mcp.json"
    path.parent.mkdir()
    path.write_text(PLAIN)
    assert cli("mcp", "install", "claude-code", "--project", "work", "--yes").code == 0
    assert str(tmp_path / "work" / ".rollcage") in path.read_text()
    refused = cli("mcp", "install", "windsurf", "--project", "work", "--yes")
    assert "no file of servers in projects" in refused.err


def test_a_store_is_named_by_its_whole_path(cli: Cli, config: Write, home: Path) -> None:
    for named, wanted in (
        ("here", str(home.parent / "here")),
        ("sqlite:///runs.db", f"sqlite:///{home.parent / 'runs.db'}"),
    ):
        path = config(".cursor/mcp.json", PLAIN)
        cli("mcp", "install", "cursor", "--store", named, "--yes")
        args = read(path)["mcpServers"]["files"]["args"]
        assert args[args.index("--store") + 1] == wanted


def test_usage(cli: Cli, config: Write) -> None:
    assert "name a client" in cli("mcp", "install").err
    assert "claude-desktop" in cli("mcp", "install", "emacs").err
    assert "is not there" in cli("mcp", "install", "cursor").err
    config(".cursor/mcp.json", PLAIN)
    assert "has files" in cli("mcp", "install", "cursor", "nope", "--yes").err
    assert "--pack describes one server" in cli("mcp", "install", "cursor", "--pack", "git").err
    assert "is no file" in cli("mcp", "install", "cursor", "--policy", "nope.toml").err
    assert (
        "--file and --project"
        in cli("mcp", "install", "cursor", "--file", "a", "--project", "b").err
    )


def test_nothing_acts_on_the_terminal(cli: Cli, config: Write, evil: str) -> None:
    data = {"mcpServers": {evil: {"command": "x", "args": [evil]}}}
    config(".cursor/mcp.json", json.dumps(data, ensure_ascii=True))
    for arguments in (["cursor"], ["cursor", "--yes"], ["--list"]):
        shown = cli("mcp", "install", *arguments)
        assert "\x1b" not in shown.out + shown.err
        assert "\u202e" not in shown.out + shown.err


SECRET_ARGS = [
    ["--api-key", "sk-1"], ["--api-key=sk-1"], ["--header", "Authorization: Bearer sk-1"],
    ["-e", "TOKEN=sk-1"], ["postgresql://ann:sk-1@localhost/db"], ["--password", "sk-1"],
]  # fmt: skip


@pytest.mark.parametrize("args", SECRET_ARGS)
def test_secrets_among_arguments_are_not_shown(args: list[str], cli: Cli, config: Write) -> None:
    path = config(
        ".cursor/mcp.json", json.dumps({"mcpServers": {"a": {"command": "x", "args": args}}})
    )
    shown = cli("mcp", "install", "cursor", "--yes")
    assert "sk-1" not in shown.out
    assert read(path)["mcpServers"]["a"]["args"][-len(args) :] == args


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SERVERS = st.dictionaries(
    TEXTS,
    st.fixed_dictionaries(
        {"command": TEXTS},
        optional={"args": st.lists(TEXTS, max_size=3), "env": st.just({"A": "b"})},
    ),
    max_size=3,
)


@given(SERVERS, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_any_servers_are_guarded_and_restored(servers: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps({"mcpServers": servers}, indent=indent, ensure_ascii=ascii_only)
    config = Config(CLIENTS["cursor"], text)
    bare = [each for each in config.entries if each.state == "bare"]
    changes = {
        place: value
        for each in bare
        for place, value in config.guarded(each, ["/bin/rollcage", "mcp", "run", "--"]).items()
    }
    after = Config(CLIENTS["cursor"], config.text.changed(changes))
    guarded = {each.name: each.starts for each in after.entries if each.state == "guarded"}
    for each in bare:
        assert guarded[each.name] == ("/bin/rollcage", "mcp", "run", "--", *each.starts)
    back = {place: config.text.raw(place) for place in changes}
    assert after.text.changed(back) == text
