"""The contracts of a server's tools, and of the reads of a client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, Protocol, cast

from rollcage import Contract
from rollcage_adapter import Effect, ListedKind

from rollcage_mcp.errors import ServerError

__all__ = [
    "GIVES_RESULT",
    "GREETINGS",
    "NEEDS_FACADE",
    "OWN",
    "PINNED_LISTS",
    "READS",
    "Calling",
    "instructions_contract",
    "read_contract",
    "text_of",
    "tool_contract",
    "tool_function",
]

GIVES_RESULT: Final = "__rollcage_mcp_result__"
"""Marks a function whose value holds the result of `tools/call`, in the server's form."""

NEEDS_FACADE: Final = "__rollcage_mcp_proposal__"
"""Marks a function that only a session with a facade may call."""

OWN: Final = "mcp:"
"""The prefix of the names of reads; no tool may have it."""

READS: Final = frozenset(
    {
        "initialize", "server/discover", "tools/list", "resources/list",
        "resources/templates/list", "resources/read", "prompts/list", "prompts/get",
        "completion/complete",
    }
)  # fmt: skip
"""The reading requests of a client: each is a step, and replays."""

PINNED_LISTS: Final[Mapping[str, tuple[ListedKind, str, str]]] = {
    "prompts/list": ("prompt", "prompts", "name"),
    "resources/list": ("resource", "resources", "uri"),
    "resources/templates/list": ("template", "resourceTemplates", "uriTemplate"),
}
"""The reads whose answers describe things to a model besides tools: what they are, the field of the
list, and the field that names each."""

GREETINGS: Final = ("initialize", "server/discover")
"""The reads by which a client begins: the server's answer may instruct the model."""

_PLAIN: Final = re.compile(r"[\w.@/-]{1,64}")
_INFO: Final = "io.modelcontextprotocol/serverInfo"
_TOOL_FAILED: Final = -32000
_SCHEMA_WORDS: Final = ("type", "properties", "$defs", "definitions")


def read_contract(method: str) -> Contract:
    """Return the contract of a client's read."""
    return Contract(
        name=OWN + method,
        description=f"What the server answers to {method}.",
        parameters={"type": "object", "properties": {}},
        effect="read",
        raises=(ServerError,),
    )


def instructions_contract(greeting: Mapping[str, Any]) -> Contract | None:
    """Return the contract of a server's instructions, approved like a tool's; None without any.

    Its description is the instructions. Its name contains the server's own name, because a facade
    may give tools of several servers.

    Args:
        greeting: the server's answer to `initialize` or `server/discover`.
    """
    # Some clients ignore case: the text under any spelling is pinned.
    declared_by = {
        word: each for word, each in greeting.items() if word.casefold() == "instructions"
    }
    text: Any = (
        declared_by["instructions"] if declared_by.keys() == {"instructions"} else declared_by
    )
    if not text:
        return None
    meta: Any = greeting.get("_meta")
    info: Any = greeting.get("serverInfo") or (meta.get(_INFO) if isinstance(meta, dict) else None)
    name: Any = info.get("name") if isinstance(info, dict) else None
    # the name stands in errors: no other text
    if isinstance(name, str) and not _PLAIN.fullmatch(name):
        name = sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    return Contract(
        name=f"{OWN}instructions" + (f":{name}" if isinstance(name, str) else ""),
        description=text if isinstance(text, str) else json.dumps(text, sort_keys=True),
        parameters={"type": "object", "properties": {}},
        effect="read",
        raises=(ServerError,),
    )


def tool_contract(
    tool: Mapping[str, Any],
    *,
    trust: bool = False,
    declared: Mapping[str, Any],
    plans: Mapping[str, Any],
) -> Contract:
    """Return the contract of a tool as the server lists it.

    The server itself checks the arguments: the model reads the server's own message about a
    mistake. So nothing is required here; but the server's whole definition of the tool is a part of
    the contract, and of the digest that an approval pins.

    Args:
        tool: its definition, as in the result of `tools/list`.
        trust: whether the server's own statement about effects counts (`annotations`).
        declared: another declaration of it, for example a pack's; this counts first.
        plans: the declared observation, undo and probe, as data: their functions are the same for
            all.
    """
    schema: Any = tool.get("inputSchema")
    own = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else {}
    parameters = {word: own[word] for word in _SCHEMA_WORDS if word in own}
    parameters |= {"x-mcp-tool": dict(tool), **plans}
    description = tool.get("description")
    declared_by: dict[str, Any] = {"effect": "write"}
    if trust:
        declared_by |= _annotated(tool.get("annotations"))
    return Contract(
        name=str(tool["name"]),
        description=description if isinstance(description, str) else "",
        parameters=parameters,
        raises=(ServerError,),
        **{**declared_by, **declared},
    )


class Calling(Protocol):
    """A caller of a server's tools without a client."""

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a tool."""
        ...


def tool_function(contract: Contract, name: str, server: Calling) -> Callable[..., Any]:
    """Return a server's tool as a function with its contract, for an undo.

    Args:
        contract: the tool's contract.
        name: the server's name for it.
        server: calls it.
    """

    async def body(**arguments: Any) -> dict[str, Any]:
        result = await server.look(name, arguments)
        if result.get("isError") is True:
            raise ServerError(_TOOL_FAILED, text_of(result) or f"{name} failed")
        return {"result": result}

    body.__name__ = name
    vars(body)["__rollcage_contract__"] = contract
    vars(body)[GIVES_RESULT] = True
    return body


def text_of(result: Mapping[str, Any]) -> str | None:
    """Return the joined texts of a tool's result; None without any."""
    content: Any = result.get("content")
    parts = [
        str(each["text"])
        for each in (content if isinstance(content, list) else [])
        if isinstance(each, dict) and "text" in each
    ]
    return "".join(parts) if parts else None


def _annotated(annotations: Any) -> dict[str, Any]:
    """Return the effect in a tool's annotations."""
    if not isinstance(annotations, Mapping):
        return {}
    declared_by = cast("Mapping[str, Any]", annotations)
    if declared_by.get("readOnlyHint") is True:
        effect: Effect = "read"
        return {"effect": effect}
    return {"idempotent": declared_by.get("idempotentHint") is True}
