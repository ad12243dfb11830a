"""Call operations by HTTP, only at the approved base URL, for a session with a facade."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import jsonschema
import referencing
from jsonschema.exceptions import best_match
from referencing.exceptions import Unresolvable
from rollcage import Contract
from rollcage_adapter import facades_of, session_here

from rollcage_mcp.contracts import NEEDS_FACADE, tool_function
from rollcage_mcp.errors import OpenAPIInvalid, ServerError, ServerGone
from rollcage_mcp.messages import text_result
from rollcage_mcp.openapi.document import Document, load_document
from rollcage_mcp.openapi.operations import Operation, Scheme, operations_of
from rollcage_mcp.openapi.requests import Request, request_of, signed
from rollcage_mcp.openapi.schemas import without_patterns
from rollcage_mcp.pack import Pack

__all__ = ["Operations"]

_INVALID: Final = -32602
_REFUSED: Final = -32000
_LARGEST: Final = 16 * 1024 * 1024  # bytes of an answer
_SHOWN: Final = 2_000  # characters of an error
_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_WHOLE: Final = 300.0  # seconds for one call
_SHORTEST: Final = 4  # minimal length of a secret that is searched for in answers
_TEXT: Final = ("text/", "application/json", "application/xml", "application/problem")


class Operations:
    """The operations of a document as tools.

    Args:
        path: the path of the document.
        url: their base URL; empty: the document's own first server.
        only: the names of the used operations; empty: all.
        secrets: by security scheme, the variable of this process's environment with its secret.
        pack: declarations of them.

    Raises:
        OpenAPIInvalid: the document or its URL can't be used.
        PackInvalid: the pack does not fit it.
    """

    def __init__(
        self,
        path: Path,
        *,
        url: str = "",
        only: tuple[str, ...] = (),
        secrets: Mapping[str, str] | None = None,
        pack: Pack | None = None,
    ) -> None:
        document = load_document(path)
        self.base: Final = _base(url or _own_url(document), str(path))
        self._operations = operations_of(document, only)
        self._secrets = dict(secrets or {})
        if pack is not None:
            pack.check({
                name: {"name": name, "inputSchema": dict(each.schema)}
                for name, each in self._operations.items()
            })  # fmt: skip
        self._contracts = {
            name: self._contract(each, pack) for name, each in self._operations.items()
        }

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return each operation as a function with its contract, by name."""
        return {name: self.function(name) for name in self._contracts}

    def function(self, name: str) -> Callable[..., Any]:
        """Return an operation as a function with its contract."""
        function = tool_function(self._contracts[name], name, self)
        vars(function)[NEEDS_FACADE] = True
        return function

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation; return its answer as the result of a tool.

        Raises:
            ServerError: the operation is not approved, its arguments are wrong, or the server has
                refused
                them: nothing has happened.
            ServerGone: the server has failed, or not answered: whether it has happened is unknown.
        """
        operation = self._operations[name]
        self._check_approved(name)
        _check(operation, arguments)
        request = request_of(operation, arguments)
        for scheme in self._way(operation):
            signed(request, scheme, self._secret(operation, scheme))
        hidden = _forms([os.environ.get(each, "") for each in self._secrets.values()])
        try:
            async with asyncio.timeout(_WHOLE):
                return await self._send(request, hidden)
        except TimeoutError:
            raise ServerGone(f"{name} was not answered within {_WHOLE:.0f} seconds") from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL) as error:
            reason = _without(f"{self.base} can't be reached: {error}", hidden)
            raise ServerError(_REFUSED, reason) from None
        except httpx.HTTPError as error:
            reason = f"{name} was not answered: {type(error).__name__}: {error}"
            raise ServerGone(_without(reason, hidden)) from None

    # --- the declarations ------------------------------------------------------------------------

    def _contract(self, operation: Operation, pack: Pack | None) -> Contract:
        """Return the contract of an operation: a write, until another declaration is approved."""
        called = {
            "method": operation.method,
            "url": self.base + operation.path,
            "arguments": {each.name: f"{each.where}: {each.own}" for each in operation.arguments},
            "body": operation.body and operation.body.media,
            "security": [[each.name for each in way] for way in operation.security],
        }
        declared = {} if pack is None else pack.declared(operation.name, self)
        plans = {} if pack is None else pack.plans(operation.name)
        fields: dict[str, Any] = {"effect": "write", **declared}
        return Contract(
            name=operation.name,
            description=operation.description,
            parameters={**operation.schema, "x-openapi": called, **plans},
            raises=(ServerError,),
            **fields,
        )

    def _check_approved(self, name: str) -> None:
        session = session_here()
        facades = [] if session is None else facades_of(session)
        if not facades:
            raise ServerError(
                _REFUSED,
                f"{name} is an operation of an OpenAPI document, so it is only called by a session "
                f"with a facade that gives it: rollcage tools propose, approve, activate, facade",
            )
        contract = self._contracts[name]
        for facade in facades:
            # the gate has checked its other permissions
            verdict = facade.check(contract, undo=True)
            if verdict is not None:
                raise ServerError(_REFUSED, str(facade.refusal(contract, verdict)))

    # --- secrets ---------------------------------------------------------------------------------

    def _way(self, operation: Operation) -> tuple[Scheme, ...]:
        """Return the schemes for authentication. Raises `ServerError`."""
        if not operation.security:
            return ()
        for way in operation.security:
            if all(each.name in self._secrets for each in way):
                return way
        named = " or ".join(" and ".join(each.name for each in way) for way in operation.security)
        raise ServerError(
            _REFUSED,
            f"{operation.name} needs a secret for {named}: name its variable in secrets, beside "
            f"openapi",
        )

    def _secret(self, operation: Operation, scheme: Scheme) -> str:
        variable = self._secrets[scheme.name]
        value = os.environ.get(variable)
        if not value:
            raise ServerError(
                _REFUSED,
                f"{operation.name} needs the variable {variable}, for {scheme.name}: it is not set",
            )
        return value

    # --- the wire --------------------------------------------------------------------------------

    async def _send(self, request: Request, hidden: list[str]) -> dict[str, Any]:
        query = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in request.query)
        url = httpx.URL(f"{self.base}{request.path}{'?' if query else ''}{query}")
        if _origin(url) != _origin(httpx.URL(self.base)):
            raise ServerError(_INVALID, "the request would leave the URL that was approved")
        headers = {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "identity"}
        # Neither proxies nor .netrc of the environment: they could send requests or secrets
        # elsewhere.
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, follow_redirects=False) as client,
            client.stream(
                request.method, url, headers=headers | request.headers, content=request.content
            ) as answer,
        ):
            raw = bytearray()
            async for part in answer.aiter_bytes():
                raw += part
                if len(raw) > _LARGEST:
                    break
            return _result(answer, bytes(raw), hidden)


def _result(answer: httpx.Response, raw: bytes, hidden: list[str]) -> dict[str, Any]:
    media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    status = answer.status_code
    if len(raw) > _LARGEST:
        text = f"an answer of more than {_LARGEST >> 20} MiB, which is not kept"
    elif raw and not media.startswith(_TEXT) and not media.endswith(("+json", "+xml")):
        text = f"{len(raw)} bytes of {media or 'an unknown type'}, which are not kept"
    else:
        text = _without(_decoded(raw, answer.encoding), hidden)
    if status >= 500 or status in (408, 425):
        raise ServerGone(f"the server has failed with {status}: {text[:_SHOWN]}")
    if status >= 400:
        raise ServerError(status, text[:_SHOWN] or answer.reason_phrase)
    result = text_result(text)
    structured: dict[str, Any] = {"status": status}
    if "location" in answer.headers:
        structured["location"] = _without(answer.headers["location"], hidden)
    with contextlib.suppress(ValueError, RecursionError):
        if media == "application/json" or media.endswith("+json"):
            structured["body"] = json.loads(text, parse_constant=lambda _: None)
    return {**result, "structuredContent": structured}


def _decoded(raw: bytes, encoding: str | None) -> str:
    try:
        return raw.decode(encoding or "utf-8", "replace")
    except LookupError:  # the name is no text encoding
        return raw.decode("utf-8", "replace")


def _check(operation: Operation, arguments: Mapping[str, Any]) -> None:
    """Validate arguments against their schema. Raises `ServerError`."""
    validator = jsonschema.Draft202012Validator(
        without_patterns(operation.schema), registry=referencing.Registry()
    )
    try:
        wrong = best_match(validator.iter_errors(dict(arguments)))
    except (Unresolvable, RecursionError, TypeError) as error:
        message = f"{operation.name}: its schema can't be used: {type(error).__name__}"
        raise ServerError(_INVALID, message) from None
    if wrong is not None:
        place = ".".join(map(str, wrong.absolute_path))
        text = f"{place}: {wrong.message}" if place else wrong.message
        raise ServerError(_INVALID, f"{operation.name}: {text[:500]}")


def _own_url(document: Document) -> str:
    """Return the URL of the document's first server, with the defaults of its variables."""
    servers: Any = document.data.get("servers")
    first: Any = servers[0] if isinstance(servers, list) and servers else {}
    url: Any = first.get("url") if isinstance(first, dict) else None
    if not isinstance(url, str):
        raise OpenAPIInvalid(f"{document.source} names no server: say its url beside openapi")
    text = str(url)
    variables: Any = first.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        default: Any = variable.get("default") if isinstance(variable, dict) else None
        text = text.replace(f"{{{name}}}", str(default))
    return text


def _base(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise OpenAPIInvalid(f"{source}: its url can't be used: {error}") from None
    wrong = parts.query or parts.fragment or parts.username or parts.password or "{" in url
    if parts.scheme not in ("http", "https") or not host or wrong or not url.isprintable():
        raise OpenAPIInvalid(
            f"{source}: {url[:100]!r} is not a base URL of the form https://HOST/PATH: say another "
            f"url beside openapi"
        )
    if parts.scheme == "http" and not _is_loopback(host):
        raise OpenAPIInvalid(f"{source}: {url[:100]!r} is not encrypted: https:// has to be used")
    return url.rstrip("/")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _forms(secrets: list[str]) -> list[str]:
    """Return the forms in which secrets could come back: plain, encoded, a password only."""
    found: set[str] = set()
    for each in secrets:
        password = each.partition(":")[2]
        found |= {each, quote(each, safe=""), json.dumps(each)[1:-1], password}
        found.add(base64.b64encode(each.encode()).decode())
    return sorted((each for each in found if len(each) >= _SHORTEST), key=len, reverse=True)


def _without(text: str, hidden: list[str]) -> str:
    for each in hidden:
        text = text.replace(each, "[secret]")
    return text
