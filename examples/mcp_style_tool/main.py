"""Tools that are a name and a JSON Schema: guarded, recorded and replayed like any other."""

import tempfile
from collections.abc import Mapping
from typing import Any

from rollcage import ArgumentsInvalid, Contract, Session


class Server:
    """Stands in for a tool server: it lists its tools as data, and has one way to call them."""

    def __init__(self) -> None:
        self.asked = 0

    def list_tools(self) -> list[dict[str, Any]]:
        """What a server says of its tools."""
        schema = {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "default": 2},
            },
            "required": ["query"],
            "additionalProperties": False,
        }
        return [{"name": "find_books", "description": "Find books.", "inputSchema": schema}]

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a tool by its name."""
        self.asked += 1
        titles = ["Ulysses", "Utopia", "Ubik"]
        found = [title for title in titles if title.startswith(arguments["query"])]
        return {"tool": name, "content": found[: arguments["limit"]]}


class Guarded:
    """A server's tools behind a session."""

    def __init__(self, server: Server, session: Session, effects: Mapping[str, Any]) -> None:
        self._server = server
        self._session = session
        self._contracts = {
            each["name"]: Contract(
                name=each["name"],
                description=each["description"],
                parameters=each["inputSchema"],
                effect=effects.get(each["name"], "write"),
            )
            for each in server.list_tools()
        }

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool through the session."""

        def body(**validated: Any) -> dict[str, Any]:
            return self._server.call_tool(name, validated)

        return self._session.run_call(self._contracts[name], arguments, body)


def main() -> None:
    """Record, replay, and refuse bad arguments."""
    server = Server()
    with tempfile.TemporaryDirectory() as store:
        with Session("books", store=store) as session:
            tools = Guarded(server, session, {"find_books": "read"})
            first = tools.call_tool("find_books", {"query": "U"})
            print("recorded:", first)
            assert first["content"] == ["Ulysses", "Utopia"]  # the schema's default limit
            for wrong in ({}, {"query": "U", "page": 3}):
                try:
                    tools.call_tool("find_books", wrong)
                except ArgumentsInvalid as error:
                    print("refused:", error)
        assert server.asked == 1
        with Session("books", store=store, replay="offline") as session:
            tools = Guarded(server, session, {"find_books": "read"})
            again = tools.call_tool("find_books", {"query": "U", "limit": 2.0})
            assert again == first
        assert server.asked == 1
        print("replayed: the server was not asked again")


if __name__ == "__main__":
    main()
