"""Encode exceptions, and decode them.

Only types that the program names are restored (DESIGN §4).
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final, cast

import orjson

from rollcage.errors import ReplayedCancellation, ReplayedError, RollcageError
from rollcage.values.codec import encode_result
from rollcage.values.decoding import Strange, decode, decode_result
from rollcage.values.hiding import Seal, hidden
from rollcage.values.registered import Types

__all__ = ["decode_exception", "describe_error", "encode_exception"]

LONG: Final = 64 * 1024  # bytes from which a text is cut: it stands in the line of each replay
_KEPT: Final = 16 * 1024  # bytes of its beginning, and of its end
_CANCELLED: Final = "asyncio.exceptions.CancelledError"
_BUILTIN_ERRORS: Final = {
    name: each
    for name, each in vars(builtins).items()
    if isinstance(each, type) and issubclass(each, Exception)
}


def _type_name(cls: type) -> str:
    """Return the full name of a type; for a builtin, the bare name."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def encode_exception(
    error: BaseException,
    seal: Seal,
    known: Iterable[type[Exception]] = (),
    types: Types | None = None,
) -> dict[str, Any]:
    """Encode an exception: the name of its type, its message, and its arguments.

    The attributes are kept too for the types in `known` (a contract's `raises`), the registered
    `types`, and their subclasses: only these are restored with attributes. Texts of 64 KiB and more
    are cut in the middle, with the SHA-256 of the whole; other parts of that size are left out. A
    stand-in for a recorded exception is written like the original.
    """
    if isinstance(error, ReplayedError):
        encoded: dict[str, Any] = {
            "type": error.type_name,
            "message": _text_of(error, error.message),
        }
    else:
        encoded = {"type": _type_name(type(error)), "message": _text_of(error)}
        encoded |= _parts(error, seal, known, types)
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    if notes:
        whole = "\n".join(notes)
        cut = _cut(whole)
        encoded["notes"] = encode_result(notes if cut == whole else [cut], seal).value
    quoting = [part for part in ("message", "args", "state", "notes") if part in encoded]
    return encoded | {part: hidden(encoded[part], seal).value for part in quoting}


def _text_of(error: BaseException, text: str | None = None) -> str:
    try:
        message = str(error) if text is None else text
        message.encode()
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the tool's own error
        message = "<its text can't be shown>"
    cut: str = _cut(message)
    return cut


def _parts(
    error: BaseException, seal: Seal, known: Iterable[type[Exception]], types: Types | None
) -> dict[str, Any]:
    """Return an exception's arguments, and its attributes if they are kept."""
    encoded: dict[str, Any] = {}
    arguments = _encoded([_cut(each) for each in _made_of(error)], seal, types)
    if arguments is not None:
        encoded["args"] = arguments
    if isinstance(error, (RollcageError, *_declared(known, types))):
        held = _attributes(vars(error))
        parts = ((name, _encoded([_cut(each)], seal, types)) for name, each in held)
        state = {name: part[0] for name, part in parts if part is not None}
        if state:
            encoded["state"] = state
    return encoded


def describe_error(error: BaseException, seal: Seal) -> str:
    """Return an exception with its traceback as text for a log, without the secrets in it.

    Only its type where they can't be hidden.
    """
    try:
        return str(hidden("".join(traceback.format_exception(error)), seal).value)
    except Exception:  # noqa: BLE001 - whatever hides secrets fails, and may quote them itself
        return _type_name(type(error))


def _cut(value: Any) -> Any:
    """Cut a text to a moderate length; return anything else unchanged."""
    if type(value) is not str or len(value) < LONG // 4:
        return value
    data = value.encode("utf-8", "surrogatepass")
    if len(data) < LONG:
        return value
    start, end = (part.decode("utf-8", "ignore") for part in (data[:_KEPT], data[-_KEPT:]))
    gone = len(data) - 2 * _KEPT
    digest = sha256(data).hexdigest()
    return f"{start}\n[{gone} bytes are cut here; the whole has the SHA-256 {digest}]\n{end}"


def _declared(known: Iterable[type[Exception]], types: Types | None) -> tuple[type[Exception], ...]:
    return (*known, *(() if types is None else types.errors))


def _encoded(values: list[Any], seal: Seal, types: Types | None) -> list[Any] | None:
    """Encode parts of an exception; None if they can't be restored, or are too large."""
    result = encode_result(values, seal, types=types)
    if result.flaws or len(orjson.dumps(result.value)) >= LONG:
        return None
    return cast("list[Any]", result.value)


def _made_of(error: BaseException) -> list[Any]:
    if isinstance(error, OSError):  # its `args` lack the file's name
        reduced = error.__reduce__()
        return list(reduced[1]) if isinstance(reduced, tuple) else []
    return list(error.args)


def _attributes(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in fields.items() if not name.startswith("__"))


def decode_exception(
    encoded: Any, known: Iterable[type[Exception]] = (), types: Types | None = None
) -> Exception:
    """Decode an exception: as itself if it is a builtin, Rollcage's own, or declared.

    Declared are `known`, the exceptions among the registered `types`, and the subclasses of these
    that the program has defined. Any other becomes a `ReplayedError` with the name of its type and
    its message; a cancellation is a `TimeoutError` as well.

    Raises:
        ValueError: the data are not an exception (the trace is hostile input).
    """
    if not isinstance(encoded, dict):
        raise ValueError("a recorded error is an object")
    parts = cast("dict[str, Any]", encoded)
    name = _part(parts, "type", str)
    message = _part(parts, "message", str)
    notes: list[Any] = _part({"notes": [], **parts}, "notes", list)
    try:
        error = _again(parts, name, message, known, types)
    except Strange:  # it holds a value of a class that is not declared here
        error = None
    if error is None:
        kind = ReplayedCancellation if name == _CANCELLED else ReplayedError
        error = kind(name, message)
    for note in notes:
        error.add_note(str(note))
    return error


def _again(
    parts: dict[str, Any],
    name: str,
    message: str,
    known: Iterable[type[Exception]],
    types: Types | None,
) -> Exception | None:
    """Make an exception of its own type; None if the type is unknown, or can't be constructed."""
    state: dict[str, Any] = _part({"state": {}, **parts}, "state", dict, types)
    args: list[Any] | None = _part(parts, "args", list, types) if "args" in parts else None
    builtin = _BUILTIN_ERRORS.get(name)
    family = _family((RollcageError, *_declared(known, types)))
    declared = {_type_name(each): each for each in family}.get(name)
    if declared is not None and declared is not builtin:
        made_of = [message] if args is None else args
        return _remade(declared, made_of, dict(_attributes(state)), message)
    if builtin is None:
        return None
    error = _made(builtin, [message] if args is None else args)
    return None if args is None and error is not None and str(error) != message else error


def _part(parts: dict[str, Any], field: str, kind: type, types: Types | None = None) -> Any:
    encoded = parts.get(field)
    value: Any = decode(encoded) if types is None else decode_result(encoded, types)
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
    """Make an exception of a declared type by its constructor, if that gives the same exception.

    Many constructors build a message from their parameters and pass it to their base: then `args`
    differ.
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
