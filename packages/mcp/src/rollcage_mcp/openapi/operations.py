"""The operations of an OpenAPI document: their arguments, and the place of each in a request."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

from rollcage_mcp.errors import OpenAPIInvalid
from rollcage_mcp.openapi.document import Document
from rollcage_mcp.openapi.schemas import Schemas

__all__ = ["Argument", "Body", "Operation", "Scheme", "operations_of"]

_log: Final = logging.getLogger("rollcage.mcp")

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_MOST: Final = 5_000  # operations of a document
_OURS: Final = {
    "accept", "accept-encoding", "authorization", "connection", "content-length", "content-type",
    "cookie", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, "token"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST: Final = 64  # characters of a tool's name, accepted by clients and models
_STYLES: Final = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
}

Where = Literal["path", "query", "header"]


@dataclasses.dataclass(frozen=True)
class Argument:
    """A parameter of an operation.

    Attributes:
        name: the name of the tool's argument.
        own: the document's name.
        where: its place in a request.
        style: how an array or an object is written.
        explode: whether each of its items is a parameter of its own.
        is_json: whether it is written as JSON.
    """

    name: str
    own: str
    where: Where
    style: str
    explode: bool
    is_json: bool


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of an operation's request.

    Attributes:
        name: the name of the tool's argument.
        media: its type.
    """

    name: str
    media: str


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to authenticate.

    Attributes:
        name: the document's name.
        kind: `bearer`, `basic`, or the place of a key.
        own: the name of the header or parameter of a key.
    """

    name: str
    kind: Literal["bearer", "basic", "header", "query"]
    own: str = ""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, as a tool.

    Attributes:
        name: the name of the tool.
        method: the HTTP method, in capitals.
        path: with the names of parameters in braces.
        description: for people and models.
        arguments: its parameters.
        body: its body; None without one.
        security: the alternatives for authentication: each needs all of its schemes.
        schema: the JSON Schema of the tool's arguments.
    """

    name: str
    method: str
    path: str
    description: str
    arguments: tuple[Argument, ...]
    body: Body | None
    security: tuple[tuple[Scheme, ...], ...]
    schema: Mapping[str, Any]


class _Unsupported(Exception):
    """An operation with a part that the proxy can't send; the text names it."""


def operations_of(document: Document, only: Sequence[str] = ()) -> dict[str, Operation]:
    """Return the operations of a document, by the names of their tools.

    Args:
        document: the document.
        only: only these; empty: all possible ones. An operation that can't be called, because of
            the
            form of a parameter or of its body, is then left out, and logged.

    Raises:
        OpenAPIInvalid: the document is broken, or a named operation does not exist or can't be
            called.
    """
    found: dict[str, Operation] = {}
    refused: dict[str, str] = {}
    for name, method, path, shared, declared in _listed(document):
        if name in found or name in refused:
            raise OpenAPIInvalid(f"{document.source}: two operations are called {name}")
        if only and name not in only:
            continue
        if len(found) >= _MOST:
            raise OpenAPIInvalid(f"{document.source} has more than {_MOST} operations")
        try:
            found[name] = _operation(document, name, method, path, shared, declared)
        except _Unsupported as error:
            refused[name] = str(error)
    for name in only:
        if name not in found:
            why = refused.get(name, "there is no such operation")
            raise OpenAPIInvalid(f"{document.source}: {name}: {why}")
    for name, why in refused.items():
        _log.warning("%s: the operation %s is left out: %s", document.source, name, why)
    return found


_Listed = tuple[str, str, str, list[Any], dict[str, Any]]


def _listed(document: Document) -> Iterator[_Listed]:
    """Yield each operation: its name, method and path, the parameters of its path, and itself."""
    paths: Any = document.data.get("paths")
    if not isinstance(paths, dict):
        raise OpenAPIInvalid(f"{document.source} has no paths")
    for path, item in cast("dict[str, Any]", paths).items():
        if path.startswith("x-"):
            continue
        if not path.startswith("/"):
            raise OpenAPIInvalid(f"{document.source}: the path {path[:100]!r} has to begin with /")
        own = document.resolved(item, f"paths.{path}")
        if "servers" in own:
            raise OpenAPIInvalid(f"{document.source}: {path} has servers of its own: not taken")
        shared = _list(document, own.get("parameters"), f"{path}: parameters")
        for method in _METHODS:
            if method in own:
                declared = document.resolved(own[method], f"{method} {path}")
                yield _name(method, path, declared), method.upper(), path, shared, declared


def _list(document: Document, each: Any, where: str) -> list[Any]:
    if not isinstance(each, list | None):
        raise OpenAPIInvalid(f"{document.source}: {where} is no list")
    return each or []


def _name(method: str, path: str, declared: Mapping[str, Any]) -> str:
    given = declared.get("operationId")
    text = given if isinstance(given, str) and given else f"{method}{path}"
    return _NOT_IN_NAMES.sub("_", text).strip("_")[:_LONGEST] or method


def _operation(
    document: Document,
    name: str,
    method: str,
    path: str,
    shared: list[Any],
    declared: dict[str, Any],
) -> Operation:
    where = f"{method} {path}"
    if "servers" in declared:
        raise _Unsupported("it has servers of its own")
    security = _security(document, declared.get("security", document.data.get("security")), where)
    keys = {(each.kind, each.own.lower()) for way in security for each in way}
    own = _list(document, declared.get("parameters"), f"{where}: parameters")
    given: dict[tuple[str, str], dict[str, Any]] = {}
    for each in [*shared, *own]:  # an operation's own parameter replaces its path's
        one = document.resolved(each, f"{where}: a parameter")
        given[str(one.get("in")), str(one.get("name"))] = one
    parameters = {
        (place, own_name): one
        for (place, own_name), one in given.items()
        if not (place == "header" and own_name.lower() in _OURS)
        and (place, own_name.lower()) not in keys
    }
    times = Counter(own_name for _, own_name in parameters)
    schemas = Schemas(document)
    arguments: list[Argument] = []
    properties: dict[str, Any] = {}
    required: list[str] = []
    for (place, own_name), one in parameters.items():
        if place == "cookie":
            if one.get("required") is True:
                raise _Unsupported(f"the parameter {own_name!r} is a cookie")
            continue
        argument, schema = _argument(document, one, f"{where}: {own_name}")
        if times[own_name] > 1:
            argument = dataclasses.replace(argument, name=f"{place}_{own_name}")
        if argument.name in properties:
            raise _Unsupported(f"two parameters would be called {argument.name!r}")
        arguments.append(argument)
        properties[argument.name] = _described(schemas.taken(schema), one.get("description"))
        if place == "path" or one.get("required") is True:
            required.append(argument.name)
    _check_path(document, path, arguments)
    body = None
    if "requestBody" in declared:
        sent = document.resolved(declared["requestBody"], f"{where}: requestBody")
        body, schema = _body(sent, taken=set(properties))
        properties[body.name] = _described(schemas.taken(schema), sent.get("description"))
        if sent.get("required") is True:
            required.append(body.name)
    whole: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if schemas.defs:
        whole["$defs"] = schemas.defs
    texts = [declared.get(word) for word in ("summary", "description")]
    description = "\n\n".join(each for each in texts if isinstance(each, str) and each)
    return Operation(name, method, path, description, tuple(arguments), body, security, whole)


def _described(schema: Any, description: Any) -> Any:
    """Return a schema with the description of its value."""
    if isinstance(description, str) and isinstance(schema, dict) and "description" not in schema:
        return {**schema, "description": description}
    return schema


def _argument(document: Document, one: Mapping[str, Any], where: str) -> tuple[Argument, Any]:
    place, own = one.get("in"), one.get("name")
    if not isinstance(own, str) or not own or place not in _STYLES:
        raise OpenAPIInvalid(f"{document.source}: {where}: it has no name, or no place: {place!r}")
    if place == "header" and not _HEADER.fullmatch(own):
        raise OpenAPIInvalid(f"{document.source}: {own[:100]!r} can't be the name of a header")
    style = one.get("style", "form" if place == "query" else "simple")
    if style not in _STYLES[place]:
        raise _Unsupported(f"the parameter {own!r} has the style {style!r}")
    content: Any = one.get("content")
    if isinstance(content, dict):
        if [*content] != ["application/json"] or not isinstance(content["application/json"], dict):
            raise _Unsupported(f"the parameter {own!r} is neither a value nor JSON")
        schema: Any = content["application/json"].get("schema", {})
    else:
        schema = one.get("schema", {})
    explode = one.get("explode", style == "form")
    argument = Argument(own, own, place, style, explode is True, isinstance(content, dict))
    return argument, schema


def _check_path(document: Document, path: str, arguments: Sequence[Argument]) -> None:
    named = re.findall(r"\{([^{}]*)\}", path)
    given = [each.own for each in arguments if each.where == "path"]
    if sorted({*named}) != sorted(given):
        raise OpenAPIInvalid(
            f"{document.source}: the path {path[:100]} names {sorted({*named})}, and its "
            f"parameters are {sorted(given)}"
        )


def _body(sent: Mapping[str, Any], taken: set[str]) -> tuple[Body, Any]:
    content: Any = sent.get("content")
    medias: dict[str, Any] = content if isinstance(content, dict) else {}
    for media in sorted(medias, key=lambda each: each != "application/json"):
        plain = media.partition(";")[0].strip().lower()
        is_json = plain == "application/json" or plain.endswith("+json")
        if is_json or plain in ("application/x-www-form-urlencoded", "text/plain"):
            declared: Any = medias[media]
            schema = declared.get("schema", {}) if isinstance(declared, dict) else {}
            return Body("body" if "body" not in taken else "request_body", plain), schema
    listed = ", ".join(medias) or "nothing"
    raise _Unsupported(f"its body is {listed[:100]}, and none of JSON, a form or plain text")


def _security(document: Document, declared: Any, where: str) -> tuple[tuple[Scheme, ...], ...]:
    components: Any = document.data.get("components", {})
    known: Any = components.get("securitySchemes", {}) if isinstance(components, dict) else {}
    found: list[tuple[Scheme, ...]] = []
    for way in _list(document, declared, f"{where}: security"):
        if not isinstance(way, dict) or not isinstance(known, dict):
            raise OpenAPIInvalid(f"{document.source}: {where}: security is no list of objects")
        found.append(tuple(_scheme(document, name, known) for name in cast("dict[str, Any]", way)))
    return tuple(found)


def _scheme(document: Document, name: str, known: Mapping[str, Any]) -> Scheme:
    if name not in known:
        raise OpenAPIInvalid(f"{document.source}: there is no security scheme {name[:100]!r}")
    declared = document.resolved(known[name], f"the security scheme {name}")
    kind, own = declared.get("type"), str(declared.get("name", ""))
    place: Any = declared.get("in")
    if place == "header" and not (_HEADER.fullmatch(own) and own.lower() != "host"):
        raise OpenAPIInvalid(f"{document.source}: {own[:100]!r} can't be the name of a header")
    if kind == "apiKey" and place in ("header", "query") and own:
        return Scheme(name, place, own)
    if kind in ("oauth2", "openIdConnect"):
        return Scheme(name, "bearer")
    scheme = str(declared.get("scheme", "")).lower()
    if kind == "http" and scheme in ("bearer", "basic"):
        return Scheme(name, "basic" if scheme == "basic" else "bearer")
    raise _Unsupported(f"the security scheme {name!r} is of a kind that can't be sent")
