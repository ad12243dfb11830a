"""An MCP server for the tests, spoken to over stdin and stdout; it notes what it did in a file."""

import os
import sys
import time
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("notes", log_level="ERROR")
NOTES = Path(sys.argv[1])


@server.tool()
def note(line: str, mark: str = "-") -> str:
    """Write a line down."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{mark} {line}\n")
    return f"noted {line}"


@server.tool()
def vanish(line: str, *, dies: bool) -> str:
    """Write a line down, and never answer."""
    note(line)
    if dies:
        os._exit(1)
    time.sleep(60)
    return "too late"


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


if __name__ == "__main__":
    server.run()
