"""A server of the line 2.x, for tests."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("two")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def work(steps: int, context: Context) -> str:  # type: ignore[type-arg]
    """Work, and tell of it."""
    for step in range(steps):
        await context.report_progress(step + 1, steps)
    return "done"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it does not work")


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt()
def ask(what: str) -> str:
    """Ask something."""
    return f"What is {what}?"


server.run("stdio")
