"""A server of the line 1.x that lists its tools page by page, for tests."""

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server: Server[None] = Server("pages")
PAGES = 3


@server.list_tools()
async def listed(request: types.ListToolsRequest) -> types.ListToolsResult:
    """One tool a page."""
    cursor = request.params.cursor if request.params else None
    page = int(cursor or 0)
    tool = types.Tool(name=f"tool-{page}", inputSchema={"type": "object"})
    more = str(page + 1) if page + 1 < PAGES else None
    return types.ListToolsResult(tools=[tool], nextCursor=more)


@server.call_tool(validate_input=False)
async def called(name: str, _: dict[str, object]) -> list[types.TextContent]:
    """Say which tool it is."""
    return [types.TextContent(type="text", text=f"this is {name}")]


async def main() -> None:
    """Serve at standard input and output."""
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
