"""Check outputs against the promise of a tool's declaration.

The checks are pure: nothing is changed, repaired or run. A value that keeps the contract is passed
on unchanged.
"""

from __future__ import annotations

import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin

import orjson
import pydantic

from rollcage.errors import OutputDrift
from rollcage.values.codec import TAG, encode_result, same_encoding
from rollcage.values.hiding import Seal
from rollcage.values.survey import survey_safely

__all__ = ["Drift", "DriftCode", "OnDrift", "Promise", "as_error", "raised", "type_of"]

OnDrift = Literal["error", "report"]
"""The response to drift: the call raises `OutputDrift`, or the trace alone reports it."""

DriftCode = Literal[
    "output_empty",
    "output_not_json",
    "output_wrong_type",
    "output_missing_field",
    "output_too_large",
]

_STREAMS: Final = frozenset(
    {AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator}
)
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_LONGEST: Final = 200  # characters of a path or a reason: keys of the output are part of a path
_OWN_WORDS: Final = frozenset({"value_error", "assertion_error"})  # a validator's: may hold a value
_NATIVE: Final = orjson.dumps({TAG: "native"})[1:-1]


class Drift(NamedTuple):
    """Describe how an output breaks its contract.

    Attributes:
        code: a code for machines.
        path: the field of the output, from `$`.
        reason: a message that quotes nothing of the output but the names of its fields.
        reported: whether the call returns its output all the same.
    """

    code: DriftCode
    path: str
    reason: str
    reported: bool = False

    def as_data(self) -> dict[str, Any]:
        """Return the form in the trace."""
        data: dict[str, Any] = {"code": self.code, "path": self.path, "reason": self.reason}
        return data | {"reported": True} if self.reported else data


class Promise:
    """Check the outputs of one tool.

    Args:
        returns: the declared return type; None if it is not checked.
        shape: the type of the JSON in a text output; `Any` for any JSON, None for any text.
        allow_empty: whether an empty output is accepted.
        max_bytes: the size limit of the output's JSON.
        framework: the framework whose native values pass.
        on_type: the response to an output without the return type.
        on_rest: the response to any other breach.
        is_of_text: whether `returns` is `str`.

    Attributes:
        is_of_text: whether any text that JSON can hold passes, as for most outputs.
    """

    def __init__(
        self,
        returns: pydantic.TypeAdapter[Any] | None,
        shape: pydantic.TypeAdapter[Any] | None,
        *,
        streams: bool,
        allow_empty: bool,
        max_bytes: int | None,
        framework: str,
        on_type: OnDrift,
        on_rest: OnDrift,
        is_of_text: bool = False,
    ) -> None:
        self._returns = returns
        self._shape = shape
        self._streams = streams
        self._allow_empty = allow_empty
        self._max_bytes = max_bytes
        self._framework = framework
        self._on_type: OnDrift = on_type
        self._on_rest: OnDrift = on_rest
        self._is_typed_only = allow_empty and shape is None and max_bytes is None  # most are
        self.is_of_text = is_of_text and self._is_typed_only

    def broken_by(self, value: Any, seal: Seal) -> Drift | None:
        """Return how this output breaks the promise; None if it keeps it."""
        if not self._is_typed_only:
            drift = self._beside_type(value, seal)
            if drift is not None:
                return drift._replace(reported=self._on_rest == "report")
        drift = self._of_type(value, seal)
        return drift and drift._replace(reported=self._on_type == "report")

    def _beside_type(self, value: Any, seal: Seal) -> Drift | None:
        whole = value
        if self._streams and type(value) is list and all(isinstance(v, str) for v in value):
            whole = "".join(cast("list[str]", value))  # a stream of text is joined
        if not self._allow_empty and _is_empty(whole):
            return Drift("output_empty", "$", "it is empty")
        return self._of_json(whole) or self._of_size(value, seal)

    def _of_json(self, value: Any) -> Drift | None:
        if self._shape is None:
            return None
        is_text = isinstance(value, str | bytes | bytearray)
        try:
            if is_text:
                orjson.loads(value)
                self._shape.validate_json(value, strict=True)
            else:
                self._shape.validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            return _drift_of(error)
        except ValueError:  # orjson's JSONDecodeError, whose words show where; the text stays out
            return Drift("output_not_json", "$", "it is text, and no JSON")
        except Exception as error:  # noqa: BLE001 - validators are the user's own
            return _failed(error)
        return None

    def _of_type(self, value: Any, seal: Seal) -> Drift | None:
        adapter = self._returns
        if adapter is None or (self._streams and type(value) is not list):
            return None
        try:
            if adapter.validator.isinstance_python(value, strict=True):
                return None
            drift = _mismatch(adapter, value, seal)
        except pydantic.PydanticUserError:
            return None  # a type that Pydantic can't build: nothing can be checked by it
        except Exception as error:  # noqa: BLE001 - validators are the user's own
            drift = _failed(error)
        if drift is not None and self._framework and _NATIVE in _encoded(value, seal):
            return None  # what the framework makes of it is not what the function says
        return drift

    def _of_size(self, value: Any, seal: Seal) -> Drift | None:
        if self._max_bytes is None:
            return None
        size = len(_encoded(value, seal))
        if size <= self._max_bytes:
            return None
        return Drift("output_too_large", "$", f"{size} bytes of JSON; {self._max_bytes} may be")


def type_of(returns: Any) -> tuple[Any, bool]:
    """Return the type for checking an output, and whether it is a stream: a list of chunks."""
    if get_origin(returns) not in _STREAMS:
        return returns, False
    parts = get_args(returns)
    return types.GenericAlias(list, parts[:1] or (Any,)), True


def _mismatch(adapter: pydantic.TypeAdapter[Any], value: Any, seal: Seal) -> Drift | None:
    """Return why a value does not match its type in Pydantic's strict mode.

    Strict mode refuses some values that do have the type (a `deque`, a mapping that is not a dict):
    a value that lax mode returns unchanged is accepted.
    """
    lax: Drift | None = None
    try:
        again = adapter.validate_python(value)
    except pydantic.ValidationError as error:
        lax = _drift_of(error)
    else:
        was = encode_result(value, seal)
        if same_encoding(encode_result(again, seal).value, was.value):
            return None
        if was.flaws and again == value:  # there is no encoding to tell it by
            return None
    try:
        adapter.validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        strict = _drift_of(error)
        return lax if lax is not None and strict.path == "$" else strict
    return None


def _drift_of(error: pydantic.ValidationError) -> Drift:
    """Return the first error. The output's values stay out of the message: they may be secret."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    kind = first["type"]
    path = "$" + "".join(f"[{at}]" if type(at) is int else f".{at}" for at in first["loc"])
    code: DriftCode = "output_wrong_type"
    if kind.startswith("missing"):
        code = "output_missing_field"
    elif kind in ("json_invalid", "json_type"):
        code = "output_not_json"
    elif kind in _OWN_WORDS:
        return Drift(code, _short(path), "its declared type refuses it")
    reason = "it is text, and no JSON" if code == "output_not_json" else first["msg"]
    return Drift(code, _short(path), _short(reason))


def _failed(error: Exception) -> Drift:
    return Drift(
        "output_wrong_type", "$", f"its declared type's own code raised {type(error).__name__}"
    )


def _short(text: str) -> str:
    """Cut a text to a moderate length, encodable as UTF-8."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}…"


def _is_empty(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray):
        return not value.strip()
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _encoded(value: Any, seal: Seal) -> bytes:
    return orjson.dumps(value if survey_safely(value) else encode_result(value, seal).value)


# --- in an outcome -------------------------------------------------------------------------------


def raised(outcome: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the drift that an outcome's call raised; None without one, or if only reported."""
    drift = outcome.get("drift")
    return None if drift is None or "reported" in drift else cast("Mapping[str, Any]", drift)


def as_error(name: str, drift: Mapping[str, Any], *, performed: bool) -> OutputDrift:
    """Return the error of a call whose output breaks its contract.

    Raises:
        ValueError: the data are not a drift (the trace is hostile input).
    """
    texts = [drift.get(field) for field in ("code", "path", "reason")]
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("a recorded drift is made of texts")
    code, path, reason = map(str, texts)
    return OutputDrift(name, code, path, reason, performed=performed)
