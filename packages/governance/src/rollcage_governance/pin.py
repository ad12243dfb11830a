"""The description of a tool that an approval pins, its digest, and the differences from it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NoReturn

import orjson
import pydantic
from rollcage import Contract
from rollcage.errors import ContractError
from rollcage.trace import encode, jcs

from rollcage_governance.source import Code, code_of

__all__ = ["changed", "described", "diff", "digest_of"]

_ABOUT: Final = ("undo", "observe", "probe")  # functions that a contract declares besides the body
_FORMAT: Final = "rollcage-tool/1"


def described(contract: Contract) -> tuple[dict[str, Any], tuple[Code, ...]]:
    """Return a tool's description for the comparison with its approved form, and its code.

    The description is JSON. A framework's additions (a title, the description again) are left out,
    so that a function that is declared once is the same tool in each framework.
    """
    codes = {"code": code_of(contract.function)}
    codes |= {name: code_of(getattr(contract, name)) for name in _ABOUT}
    fields = {
        "name": contract.name,
        "version": contract.version,
        "description": contract.description,
        "effect": contract.effect,
        "idempotent": contract.idempotent,
        "risk": contract.risk,
        "permissions": sorted(contract.permissions),
        "labels": sorted(getattr(contract, "labels", ())),
        "secret": sorted(contract.secret),
        "schema": _schema(contract),
        "returns": _returns(contract.returns),
        "output": {
            "on_drift": contract.on_drift or "error",
            "json": contract.json_output
            if isinstance(contract.json_output, bool)
            else _returns(contract.json_output),
            "allow_empty": contract.allow_empty,
            "max": contract.max_output,
        },
        **{name: code.text for name, code in codes.items()},
    }
    data = orjson.loads(jcs(encode(fields, _no_secret, path=contract.name)))
    return {name: data[name] for name in fields}, tuple(codes.values())


def _no_secret(_secret: str) -> NoReturn:
    raise ContractError("its schema holds a secret, and an approved schema is kept in the registry")


def digest_of(fields: Mapping[str, Any]) -> str:
    """Return the digest that identifies a tool: SHA-256 (hex) of the JCS of its description."""
    return sha256(jcs([_FORMAT, dict(fields)])).hexdigest()


def _schema(contract: Contract) -> dict[str, Any]:
    given = contract.parameters  # not its `json_schema`, which is cached
    whole = given if isinstance(given, Mapping) else given.model_json_schema()
    schema = {name: each for name, each in whole.items() if name != "title"}
    if schema.get("description") == contract.description:
        del schema["description"]
    if schema.get("additionalProperties") is True:  # the default
        del schema["additionalProperties"]
    secret = contract.takes.secret
    if secret and isinstance(schema.get("properties"), Mapping):
        properties: Mapping[str, Any] = schema["properties"]
        schema["properties"] = {
            name: _without_values(each) if name in secret else each
            for name, each in properties.items()
        }
    return schema


def _without_values(declared: Any) -> Any:
    """Return a secret parameter's schema without default and example values.

    A default or an example may be a real secret.
    """
    if not isinstance(declared, Mapping):
        return declared
    schema: Mapping[str, Any] = declared
    says_nothing = (None, "", False, True)
    return {
        word: each for word, each in schema.items() if word not in _VALUES or each in says_nothing
    }


_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})


def _returns(returns: Any) -> Any:
    """Return the schema of a return type; its name, if it has none."""
    if returns is None or returns is Any:
        return None
    try:
        return pydantic.TypeAdapter(returns).json_schema()
    except (pydantic.PydanticUserError, TypeError, NameError):
        return str(getattr(returns, "__qualname__", None) or type(returns).__qualname__)


# --- differences ---------------------------------------------------------------------------------


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ, in the order of the description."""
    names = [*new, *(name for name in old if name not in new)]
    return [name for name in names if old.get(name) != new.get(name)]


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the differences, field by field, for people; empty without any."""
    parts: list[str] = []
    for name in changed(old, new):
        was, now = old.get(name), new.get(name)
        if _is_word(was) and _is_word(now):
            parts.append(f"{name}: {_word(was)} -> {_word(now)}")
        else:
            lines = difflib.unified_diff(_lines(was), _lines(now), lineterm="", n=2)
            parts.append("\n".join([f"{name}:", *(f"  {line}" for line in list(lines)[2:])]))
    return "\n".join(parts)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, str) and _short(value))


def _short(text: str) -> bool:
    return "\n" not in text and len(text) <= 60


def _word(value: Any) -> str:
    return value if isinstance(value, str) and value else orjson.dumps(value).decode()


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    if value is None:
        return []
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    return text.decode().splitlines()
