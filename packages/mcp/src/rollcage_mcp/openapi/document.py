"""An OpenAPI document as data: JSON or YAML, without YAML's own types."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

import orjson
import yaml

from rollcage_mcp.errors import OpenAPIInvalid

__all__ = ["Document", "load_document"]

_LARGEST: Final = {"json": 32 * 1024 * 1024, "yaml": 4 * 1024 * 1024}  # bytes
_DEEPEST: Final = 100
_HOPS: Final = 20  # references that lead to references

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document:
    """An OpenAPI document, of version 3.0 or 3.1.

    Args:
        data: its content.
        source: its name in errors.

    Attributes:
        is_old: whether it is of 3.0, whose schemas are not quite JSON Schema.

    Raises:
        OpenAPIInvalid: the document has another version.
    """

    def __init__(self, data: Any, source: str) -> None:
        version = data.get("openapi") if isinstance(data, dict) else None
        if not isinstance(version, str) or not version.startswith(("3.0.", "3.1.")):
            raise OpenAPIInvalid(
                f"{source} is not an OpenAPI 3.0 or 3.1 document: openapi is {str(version)[:20]!r}"
            )
        self.data: dict[str, Any] = data
        self.source = source
        self.is_old = version.startswith("3.0.")

    def at(self, reference: str) -> Any:
        """Return the target of a reference.

        Raises:
            OpenAPIInvalid: the reference leads out of the document, or to nothing.
        """
        if not reference.startswith("#/"):
            raise OpenAPIInvalid(
                f"{self.source}: $ref {reference[:100]!r} is refused: a reference has to be of the "
                f"form #/…, into the document itself"
            )
        found: Any = self.data
        for part in unquote(reference[2:]).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = cast("dict[str, Any]", found)[name]
            else:
                raise OpenAPIInvalid(f"{self.source}: $ref {reference[:100]!r} leads to nothing")
        return found

    def resolved(self, each: Any, where: str) -> dict[str, Any]:
        """Return an object, or the final target of its reference.

        Args:
            each: the object.
            where: its place, for errors.

        Raises:
            OpenAPIInvalid: it is not an object; its reference leads nowhere, or in a circle.
        """
        for _ in range(_HOPS):
            if not isinstance(each, dict):
                raise OpenAPIInvalid(f"{self.source}: {where} is not an object")
            reference: Any = each.get("$ref")
            if reference is None:
                return cast("dict[str, Any]", each)
            each = self.at(str(reference))
        raise OpenAPIInvalid(f"{self.source}: {where} leads to more than {_HOPS} other references")


def load_document(path: Path) -> Document:
    """Load the document in a file.

    Raises:
        OpenAPIInvalid: the file can't be read: no file, too large, too deep, neither JSON nor YAML;
            or
            YAML with aliases, duplicate keys, or values that JSON does not have.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(max(_LARGEST.values()) + 1)
        is_json = raw.lstrip()[:1] in (b"{", b"[")
        largest = _LARGEST["json" if is_json else "yaml"]
        if len(raw) > largest:
            raise ValueError(f"it is larger than {largest >> 20} MiB")
        data = orjson.loads(raw) if is_json else _from_yaml(raw.decode())
        _check_depth(data)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:300]
        raise OpenAPIInvalid(f"{path} can't be read: {reason}") from None
    return Document(data, str(path))


def _check_depth(data: Any) -> None:
    """Raise ValueError if the data is too deep for a recursive walk."""
    level = [data]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += cast("dict[str, Any]", each).values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return
        level = inner
    raise ValueError(f"it is more than {_DEEPEST} levels deep")


def _from_yaml(text: str) -> Any:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            line = event.start_mark.line + 1
            raise ValueError(f"line {line}: anchors and aliases (&x, *x) are not taken")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise ValueError(f"it is more than {_DEEPEST} levels deep")
    return yaml.load(text, Loader=_Plain)  # noqa: S506 - a SafeLoader with fewer types


class _Plain(_Loader):  # type: ignore[misc, unused-ignore]  # of the library in C, or in Python
    """Reads JSON's types only: no dates, sets or binary, and no duplicate keys."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key: Hashable = loader.construct_object(key_node, deep=True)
        name = key if isinstance(key, str) else key_node.value
        if not isinstance(name, str) or name in found:
            line = key_node.start_mark.line + 1
            raise ValueError(f"line {line}: a key is there twice, or is not text")
        found[name] = loader.construct_object(value_node, deep=True)
    return found


def _number(loader: Any, node: yaml.ScalarNode) -> float:
    value = float(yaml.SafeLoader.construct_yaml_float(loader, node))
    if not math.isfinite(value):
        raise ValueError(f"line {node.start_mark.line + 1}: {node.value} is not a JSON number")
    return value


def _text(loader: Any, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_PLAIN: Final[Mapping[str, Any]] = {
    "map": _mapping, "float": _number, "timestamp": _text, "str": _text,
}  # fmt: skip
for _kind, _made in _PLAIN.items():
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _made)
for _kind in ("set", "omap", "pairs", "binary"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", yaml.SafeLoader.construct_undefined)
