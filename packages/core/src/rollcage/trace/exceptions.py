"""Exceptions as data, and back. Only types that the program itself names are made (DESIGN §4)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from rollcage.errors import ReplayedError, RollcageError
from rollcage.trace.codec import Seal, encode_result
from rollcage.trace.decoding import decode

__all__ = ["decode_exception", "encode_exception"]

_BUILTIN_ERRORS: Final = {
    name: each
    for name, each in vars(builtins).items()
    if isinstance(each, type) and issubclass(each, Exception)
}


def _type_name(cls: type) -> str:
    """The full name of a type; builtins go by their bare name."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def encode_exception(
    error: BaseException, seal: Seal, known: Iterable[type[Exception]] = ()
) -> dict[str, Any]:
    """An exception as data: its type's name, its message, and what it was made of.

    Of the types in `known` (a contract's `raises`) and their subclasses the attributes are kept
    too: these alone are brought back with them.
    """
    try:
        message = str(error)
        message.encode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the tool's own error
        message = "<its text can't be shown>"
    encoded: dict[str, Any] = {"type": _type_name(type(error)), "message": message}
    arguments = encode_result(_made_of(error), seal)
    if not arguments.flaws:
        encoded["args"] = arguments.value
    if isinstance(error, (RollcageError, *known)):
        state = {name: encode_result(value, seal) for name, value in _attributes(vars(error))}
        state = {name: each for name, each in state.items() if not each.flaws}
        if state:
            encoded["state"] = {name: each.value for name, each in state.items()}
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    if notes:
        encoded["notes"] = encode_result(notes, seal).value
    return encoded


def _made_of(error: BaseException) -> list[Any]:
    if isinstance(error, OSError):  # its `args` lack the file's name
        reduced = error.__reduce__()
        return list(reduced[1]) if isinstance(reduced, tuple) else []
    return list(error.args)


def _attributes(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in fields.items() if not name.startswith("__"))


def decode_exception(encoded: Any, known: Iterable[type[Exception]] = ()) -> Exception:
    """An exception from its data: itself where it is a builtin, one of ours, or among `known`.

    Subclasses of `known` that the program has defined count as known. Any other is a
    `ReplayedError` with its type's name and message.

    Raises:
        ValueError: data that are no exception's (the trace is hostile input).
    """
    if not isinstance(encoded, dict):
        raise ValueError("a recorded error is an object")
    parts = cast("dict[str, Any]", encoded)
    name = _part(parts, "type", str)
    message = _part(parts, "message", str)
    state: dict[str, Any] = _part({"state": {}, **parts}, "state", dict)
    notes: list[Any] = _part({"notes": [], **parts}, "notes", list)
    args: list[Any] | None = _part(parts, "args", list) if "args" in parts else None
    builtin = _BUILTIN_ERRORS.get(name)
    declared = {_type_name(each): each for each in _family((RollcageError, *known))}.get(name)
    error: Exception | None = None
    if declared is not None and declared is not builtin:
        error = _remade(declared, args or [], dict(_attributes(state)), message)
    elif builtin is not None:
        error = _made(builtin, [message] if args is None else args)
        if args is None and error is not None and str(error) != message:
            error = None
    if error is None:
        error = ReplayedError(name, message)
    for note in notes:
        error.add_note(str(note))
    return error


def _part(parts: dict[str, Any], field: str, kind: type) -> Any:
    value: Any = decode(parts.get(field))
    if not isinstance(value, kind):
        raise ValueError(f"the {field} of a recorded error is no {kind.__name__}")
    return value


def _family(types: Iterable[type[Exception]]) -> Iterator[type[Exception]]:
    for each in types:
        yield each
        yield from _family(each.__subclasses__())


def _made(cls: type[Exception], args: list[Any]) -> Exception | None:
    try:
        return cls(*args)
    except Exception:  # noqa: BLE001 - a constructor may raise anything
        return None


def _remade(
    cls: type[Exception], args: list[Any], state: dict[str, Any], message: str
) -> Exception | None:
    """An exception of a declared type, by its constructor where that says the same again.

    Many pass their base a message that they make of their own parameters: `args` are not those.
    """
    error = _made(cls, args)
    try:
        if error is not None:
            vars(error).update(state)
            if str(error) == message:
                return error
        error = cls.__new__(cls, *args)
        error.args = tuple(args)
        vars(error).update(state)
    except Exception:  # noqa: BLE001 - of the user's own, as above
        return None
    return error
