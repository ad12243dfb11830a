"""Clients and servers that are not ours, each in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PARTIES = Path(__file__).parent / "parties"
LAB = Path(os.environ.get("ROLLCAGE_MCP_LAB", ""))  # with the environments of clients and servers
ROLLCAGE = [sys.executable, "-m", "rollcage"]

if not LAB.name:
    pytest.skip("nox -s mcp makes the environments", allow_module_level=True)

CLIENTS = ["old", "new legacy", "new auto", "new 2026-07-28"]


def node(name: str, *more: str) -> list[str]:
    return [str(LAB / "npm" / "node_modules" / ".bin" / f"mcp-server-{name}"), *more]


def python(line: str, name: str, *more: str) -> list[str]:
    return [str(LAB / line / "bin" / name), *more]


def play(client: str, story: list[Any], command: list[str], **env: str) -> Any:
    """Have a client tell its story to a server: what it saw."""
    name, *era = client.split()
    python = LAB / name / "bin" / "python"
    script = str(PARTIES / f"{name}_client.py")
    done = subprocess.run(
        [str(python), script, json.dumps(story), *era, "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
