"""A plan's file as plain data, with the line of every value, so that an error can name the line.

YAML 1.2 or JSON, read by ruamel.yaml down to its nodes; ambiguous or growing input is refused:
aliases, anchors, tags, duplicate keys, numbers that JSON lacks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML, tokens
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from rollcage_workflow.errors import PlanFinding, PlanInvalid

__all__ = ["Document", "Path", "read_file", "read_text", "written"]

Path = tuple[str | int, ...]
"""The place of a value in a plan."""

_MOST_CHARACTERS: Final = 1_000_000
_MOST_DEEP: Final = 48
_BEGIN: Final = (
    *(tokens.BlockMappingStartToken, tokens.BlockSequenceStartToken),
    *(tokens.FlowMappingStartToken, tokens.FlowSequenceStartToken),
)
_END: Final = (tokens.BlockEndToken, tokens.FlowMappingEndToken, tokens.FlowSequenceEndToken)


class Document(NamedTuple):
    """A plan as data.

    Attributes:
        where: its name in errors.
        data: its table.
        lines: the line (from 1) in which each value begins; none for a plan built in Python.
    """

    where: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int]

    def finding(self, path: Path, code: str, reason: str) -> PlanFinding:
        """Return a problem of a value."""
        at = path
        while at and at not in self.lines:
            at = at[:-1]
        return PlanFinding(self.where, self.lines.get(at, 0), written(path), code, reason)


def written(path: Path) -> str:
    """Return a path as people write it: `steps.mails.each.steps[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_file(path: str | FilePath) -> Document:
    """Read the plan in a file: `.yaml`, `.yml` or `.json`.

    Raises:
        PlanInvalid: the file can't be read, or is more than plain data.
    """
    file = FilePath(path)
    where = str(path)
    if file.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise _invalid(where, 0, "a plan is a .yaml, a .yml or a .json file")
    try:
        with file.open(encoding="utf-8-sig") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _invalid(where, 0, f"can't be read: {reason}") from None
    if file.suffix.lower() == ".json":
        try:
            json.loads(text)
        except ValueError as error:
            line = getattr(error, "lineno", 0)
            raise _invalid(where, line, f"not JSON: {getattr(error, 'msg', error)}") from None
        except RecursionError:
            raise _invalid(where, 0, "nested too deep") from None
    return read_text(text, where)


def read_text(text: str, where: str = "<plan>") -> Document:
    """Read the plan in a text, YAML or JSON.

    Raises:
        PlanInvalid: as `read_file`.
    """
    if len(text) > _MOST_CHARACTERS:
        raise _invalid(where, 0, f"longer than {_MOST_CHARACTERS} characters")
    try:
        _scan(text, where)
        root = YAML(typ="rt", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        raise _invalid(where, line, f"not YAML: {error.problem or error.context}") from None
    except (YAMLError, ValueError) as error:
        raise _invalid(where, 0, f"not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise _invalid(where, 0, "nested too deep") from None
    if root is None or root.id != "mapping":
        raise _invalid(where, 1, "a plan is a table: name, inputs, steps, output")
    reading = _Nodes(where)
    return Document(where, reading.value(root, ()), reading.lines)


def _scan(text: str, where: str) -> None:
    """Refuse input that takes too long to read, or that reading would lose: deep nesting, tags."""
    deep = 0
    for token in YAML(typ="rt", pure=True).scan(text):
        line = token.start_mark.line + 1
        if isinstance(token, tokens.TagToken):
            raise _invalid(where, line, f"tags are not taken: {_tag(token)}")
        deep += isinstance(token, _BEGIN) - isinstance(token, _END)
        if deep > _MOST_DEEP + 1:
            raise _invalid(where, line, f"nested deeper than {_MOST_DEEP} levels")


def _tag(token: Any) -> str:
    handle, suffix = token.value
    return f"{handle or ''}{suffix or ''}"


def _invalid(where: str, line: int, reason: str, path: Path = ()) -> PlanInvalid:
    return PlanInvalid([PlanFinding(where, line, written(path), "unreadable", reason)])


_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OTHER_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", "")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}  # YAML's core schema, 10.3.2


class _Nodes:
    """The data of YAML's nodes."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[Path, int] = {}
        self.seen: set[int] = set()

    def value(self, node: Any, path: Path) -> Any:
        line = node.start_mark.line + 1
        if node.anchor or id(node) in self.seen:
            raise _invalid(self.where, line, "anchors (&) and aliases (*) are not taken", path)
        self.seen.add(id(node))
        if len(path) > _MOST_DEEP:
            raise _invalid(self.where, line, f"nested deeper than {_MOST_DEEP} levels", path[:3])
        self.lines.setdefault(path, line)
        if node.id == "mapping":
            return self.mapping(node, path)
        if node.id == "sequence":
            return [self.value(each, (*path, index)) for index, each in enumerate(node.value)]
        return self.scalar(node, line, path)

    def mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar" or key.anchor:
                raise _invalid(self.where, line, "a name has to be a text", path)
            name = str(key.value)
            if name in found:
                raise _invalid(self.where, line, "is there twice", (*path, name))
            self.lines[*path, name] = line
            found[name] = self.value(value, (*path, name))
        return found

    def scalar(self, node: Any, line: int, path: Path) -> Any:
        text = str(node.value)
        if node.style in ("'", '"', "|", ">"):
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            if len(text) > 17 or not -(2**53) < int(text) < 2**53:
                raise _invalid(self.where, line, "an integer beyond 2^53; quote it", path)
            return int(text)
        if _FLOAT.fullmatch(text):
            if math.isinf(float(text)):
                raise _invalid(self.where, line, f"{text[:40]} is beyond a float", path)
            return float(text)
        if _OTHER_NUMBER.fullmatch(text):
            message = f"{text[:40]} is a number in YAML and none in JSON: use decimals, or quote it"
            raise _invalid(self.where, line, message, path)
        return text
