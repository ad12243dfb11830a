"""An MCP server of the line 1.x for tests of the adapters, spoken to over stdin and stdout.

`python features.py NOTES [VARIANT]`: what it did is noted in a file, each start of it as well.
"""

import base64
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import FastMCP
from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent, TextContent
from pydantic import AnyUrl

NOTES = Path(sys.argv[1])
VARIANT = sys.argv[2] if len(sys.argv) > 2 else ""
# One dot, as a picture.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5E"
    "rkJggg=="
)
server = FastMCP("features", log_level="ERROR")


def took(line: str) -> None:
    """Put down what was done."""
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@server.tool(name="note" if VARIANT != "changed" else "write_down")
def note(line: str, mark: str | None = None, often: int = 1) -> str:
    """Write a line down."""
    for _ in range(often):
        took(f"{mark or '-'} {line}")
    return f"noted {line}"


@server.tool()
def measure(city: str) -> dict[str, Any]:
    """Measure the weather."""
    return {"city": city, "degrees": 21.5, "wet": False}


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Give a picture, and a file."""
    blob = BlobResourceContents(
        uri=AnyUrl("note://file"),
        mimeType="application/zip",
        blob=base64.b64encode(b"zip").decode(),
    )
    return [
        TextContent(type="text", text="look <b>\x1b[31m"),
        ImageContent(type="image", data=PIXEL, mimeType="image/png"),
        EmbeddedResource(type="resource", resource=blob),
    ]


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool()
def vanish(line: str) -> str:
    """Write a line down, and die."""
    took(f"- {line}")
    os._exit(1)


@server.tool()
def sleep(line: str) -> str:
    """Write a line down, and never answer."""
    took(f"- {line}")
    time.sleep(60)  # longer than any test waits
    return "too late"


if __name__ == "__main__":
    took("start")
    server.run()
