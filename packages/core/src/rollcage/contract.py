"""What is declared of a tool, and the canonical form of its arguments (DESIGN §1, §2)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin
from uuid import UUID

import orjson
import pydantic

from rollcage.errors import ArgumentsInvalid, ContractError, Unencodable
from rollcage.fingerprint import jcs
from rollcage.trace.codec import FOREIGN, Seal, encode, survey, tagged

__all__ = ["Arguments", "Contract", "Effect", "OnMiss", "Source"]

Effect = Literal["pure", "read", "write", "scope"]
"""`pure` depends on its arguments only, `read` observes the world, `write` changes it. A `scope`
acts through guarded calls only (an agent as a tool): it is entered again, and never unknown."""

OnMiss = Literal["live", "fail", "error_result"]
"""What a replay does where it finds no recorded step: run the tool, halt, or give an error."""

Source = Literal["recorded", "live"]
"""Whether a recorded step may stand for a call at all."""


class Arguments(NamedTuple):
    """A call's arguments, validated."""

    values: dict[str, Any]  # what the body gets
    canonical: dict[str, Any]  # what the trace shows
    digest_input: bytes  # the JCS of `canonical`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """What is declared of a tool.

    Attributes:
        name: the tool's original name, never a framework's sanitised form.
        version: what the author says it is; a step recorded under another version is not reused.
        description: for people and models.
        parameters: the Pydantic model of its arguments, or a JSON Schema (an MCP tool's, say).
        returns: the declared return type, through which models and enums come back in replay.
        effect: see `Effect`; an undeclared tool is a `write`.
        idempotent: running it twice with one idempotency key is running it once.
        risk: a word for policies ("low", "high", …).
        permissions: what it may touch, for policies.
        raises: exception types that come back as themselves in replay.
        secret: names of parameters whose values never reach the disk.
        on_miss: see `OnMiss`; None leaves it to the session's replay mode.
        source: see `Source`.
    """

    name: str
    version: str = ""
    description: str = ""
    parameters: type[pydantic.BaseModel] | Mapping[str, Any]
    returns: Any = None
    effect: Effect = "write"
    idempotent: bool = False
    risk: str = ""
    permissions: tuple[str, ...] = ()
    raises: tuple[type[Exception], ...] = ()
    secret: frozenset[str] = frozenset()
    on_miss: OnMiss | None = None
    source: Source = "recorded"

    def __post_init__(self) -> None:
        if not self.name:
            raise ContractError("a tool needs a name; pass name=")
        _one_of(self, "effect", get_args(Effect))
        _one_of(self, "source", get_args(Source))
        _one_of(self, "on_miss", (None, *get_args(OnMiss)))
        unknown = self.secret - self.parameter_names
        if unknown and not self.accepts_more:
            raise ContractError(
                f"{self.name}: secret={sorted(unknown)} names no parameter; "
                f"it has {sorted(self.parameter_names)}"
            )
        # The fields that are dumped to JSON as they are; all others are tagged (DESIGN §2).
        object.__setattr__(self, "_open", self._open_parameters())
        object.__setattr__(self, "_return_adapter", _adapter(self.returns))

    _open: frozenset[str] | None = dataclasses.field(init=False, repr=False, compare=False)
    _return_adapter: pydantic.TypeAdapter[Any] | None = dataclasses.field(
        init=False, repr=False, compare=False
    )

    @functools.cached_property
    def parameter_names(self) -> frozenset[str]:
        """The names of the declared parameters."""
        if isinstance(self.parameters, Mapping):
            return frozenset(self.parameters.get("properties") or {})
        return frozenset(self.parameters.model_fields)

    @property
    def accepts_more(self) -> bool:
        """Whether arguments without a declared parameter are taken."""
        if isinstance(self.parameters, Mapping):
            return self.parameters.get("additionalProperties", True) is not False
        return self.parameters.model_config.get("extra") == "allow"

    @functools.cached_property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        if isinstance(self.parameters, Mapping):
            return dict(self.parameters)
        return self.parameters.model_json_schema()

    def _open_parameters(self) -> frozenset[str] | None:
        """The parameters whose type leaves room for more than JSON; None if each might."""
        if isinstance(self.parameters, Mapping) or self.accepts_more:
            return None
        fields = self.parameters.model_fields
        wide = {name for name, f in fields.items() if not _closed(f.annotation, ())}
        return frozenset(wide) | self.secret

    # --- arguments -------------------------------------------------------------------------------

    def bind(self, raw: Mapping[str, Any], seal: Seal) -> Arguments:
        """Validate arguments by the tool's schema and bring them into canonical form.

        Raises:
            ArgumentsInvalid: they do not pass, or hold a value that has no encoding.
        """
        parameters = self.parameters
        if isinstance(parameters, Mapping):
            return self._bind_schema(parameters, raw, seal)
        try:
            model = parameters.__pydantic_validator__.validate_python(raw)
        except pydantic.ValidationError as error:
            raise ArgumentsInvalid(_explain(self.name, error)) from None
        values: dict[str, Any] = model.__dict__
        serializer = parameters.__pydantic_serializer__
        wide = self._open
        if not wide and wide is not None:
            canonical = serializer.to_python(model, mode="json", warnings=False)
        else:
            extra = model.__pydantic_extra__ or {}
            values = {**values, **extra}
            names = values.keys() if wide is None else wide
            canonical = {}
            if wide is not None and len(wide) < len(values):
                keep = set(values) - wide
                canonical = serializer.to_python(model, mode="json", include=keep, warnings=False)
            for name in names:
                canonical[name] = self._tag(name, values[name], seal)
        return self._arguments(values, canonical, seal)

    def _bind_schema(
        self, schema: Mapping[str, Any], raw: Mapping[str, Any], seal: Seal
    ) -> Arguments:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        missing = [n for n in schema.get("required") or () if n not in raw]
        if missing:
            raise ArgumentsInvalid(f"{self.name}: missing argument {missing[0]!r}")
        if not self.accepts_more:
            for name in raw:
                if name not in properties:
                    known = ", ".join(sorted(properties)) or "none"
                    raise ArgumentsInvalid(f"{self.name}: unknown argument {name!r}; it has {known}")
        defaults = {n: p["default"] for n, p in properties.items() if "default" in p}
        values = {**defaults, **raw}
        canonical = {
            name: self._tag(name, _as_schema_says(properties.get(name), value), seal)
            for name, value in values.items()
        }
        return self._arguments(values, canonical, seal)

    def _tag(self, name: str, value: Any, seal: Seal) -> Any:
        try:
            encoded = encode(value, seal, path=name)
        except Unencodable as error:
            raise ArgumentsInvalid(f"{self.name}: argument {error}") from error
        if name in self.secret and not (isinstance(encoded, dict) and "$rollcage" in encoded):
            return tagged("secret", seal("value:" + jcs(encoded).decode()))
        if name in self.secret and encoded["$rollcage"] != "secret":
            return tagged("secret", seal("value:" + jcs(encoded).decode()))
        return encoded

    def _arguments(
        self, values: dict[str, Any], canonical: dict[str, Any], seal: Seal
    ) -> Arguments:
        level = survey(canonical)
        try:
            if level != FOREIGN:
                return Arguments(values, canonical, jcs(canonical, level))
        except orjson.JSONEncodeError:  # a lone surrogate: tagged below
            pass
        if "$rollcage" not in canonical:
            canonical = {n: v if _tagged(v) else encode(v, seal, path=n) for n, v in canonical.items()}
        else:
            canonical = encode(canonical, seal, path="arguments")
        return Arguments(values, canonical, jcs(canonical))

    # --- results ---------------------------------------------------------------------------------

    @property
    def typed(self) -> bool:
        """Whether typed values come back through a declared return type."""
        return self._return_adapter is not None

    def revive(self, plain: Any) -> Any:
        """Bring a recorded result back through the declared return type.

        Raises:
            ValueError: the recorded data do not pass it.
        """
        if self._return_adapter is None:
            raise ValueError(f"{self.name} declares no return type")
        return self._return_adapter.validate_python(plain)

    # --- from a function -------------------------------------------------------------------------

    @classmethod
    def of(cls, function: Callable[..., Any], **declared: Any) -> Contract:
        """The contract of a Python function: its signature, docstring and what is `declared`.

        Raises:
            ContractError: a parameter that can't be passed by name, or has no usable type.
        """
        name = declared.pop("name", None) or getattr(function, "__name__", "")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ContractError(f"{name}: its annotations can't be resolved: {error}") from error
        secret = declared.pop("secret", ())
        for key in ("permissions", "raises"):
            declared[key] = tuple(declared.get(key) or ())
        return cls(
            name=name,
            description=declared.pop("description", None) or inspect.getdoc(function) or "",
            parameters=_parameters(name, function, hints),
            returns=hints.get("return"),
            secret=frozenset([secret] if isinstance(secret, str) else secret),
            **declared,
        )


def _one_of(contract: Contract, field: str, allowed: tuple[Any, ...]) -> None:
    value = getattr(contract, field)
    if value not in allowed:
        raise ContractError(f"{contract.name}: {field}={value!r} is none of {list(allowed)}")


def _tagged(value: Any) -> bool:
    return type(value) is dict and "$rollcage" in value


def _explain(name: str, error: pydantic.ValidationError) -> str:
    """What is wrong with which argument; the values stay out, they may be secret."""
    parts = (
        f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
        for e in error.errors(include_input=False, include_url=False, include_context=False)
    )
    return f"{name}: " + "; ".join(parts)


def _as_schema_says(declared: Any, value: Any) -> Any:
    """JSON Schema has one number type: 1 is a `number`, and 1.0 an `integer`."""
    wanted = declared.get("type") if isinstance(declared, Mapping) else None
    if wanted == "number" and type(value) is int:
        return float(value)
    if wanted == "integer" and type(value) is float and value.is_integer():
        return int(value)
    return value


def _adapter(returns: Any) -> pydantic.TypeAdapter[Any] | None:
    if returns is None or returns is Any or returns is type(None):
        return None
    try:
        return pydantic.TypeAdapter(returns)
    except (pydantic.PydanticUserError, TypeError, NameError):
        return None  # a type that Pydantic can't build brings nothing back


_CONFIG: Final = pydantic.ConfigDict(protected_namespaces=(), arbitrary_types_allowed=False)


def _parameters(
    name: str, function: Callable[..., Any], hints: Mapping[str, Any]
) -> type[pydantic.BaseModel]:
    fields: dict[str, Any] = {}
    config = _CONFIG
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            config = pydantic.ConfigDict(**{**_CONFIG, "extra": "allow"})
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ContractError(f"{name}: parameter {parameter.name!r} can't be passed by name")
        if parameter.name.startswith("_"):
            raise ContractError(f"{name}: parameter {parameter.name!r} may not start with '_'")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    try:
        with warnings.catch_warnings():  # a parameter may be called `copy` or `json`
            warnings.simplefilter("ignore", UserWarning)
            return pydantic.create_model(name, __config__=config, **fields)
    except (pydantic.PydanticUserError, TypeError, NameError) as error:
        reason = str(error).splitlines()[0]
        raise ContractError(f"{name}: its parameters have no schema: {reason}") from error


_CLOSED: Final = {
    str, int, float, bool, type(None), dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID,
    Path,
}  # fmt: skip
_CONTAINERS: Final = (list, tuple, dict)


def _closed(annotation: Any, seen: tuple[Any, ...]) -> bool:
    """Whether each value of this type has one JSON form that says all of it.

    False for `Any`, bare containers, sets (no order), bytes (not always text), secrets, and
    whatever is not known: those are tagged.
    """
    if annotation in seen:
        return True
    seen = (*seen, annotation)
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is typing.Annotated:
        return _closed(inside[0], seen)
    if origin is Literal:
        return all(type(v) in (str, int, bool, type(None)) for v in inside)
    if origin is typing.Union or origin is types.UnionType:
        some = [each for each in inside if each is not type(None)]
        if len(some) > 1:  # two types with one JSON form must not share a key
            return all(each in (str, int, float, bool) for each in some)
        return _closed(some[0], seen)
    if origin in _CONTAINERS:
        return all(each is ... or _closed(each, seen) for each in inside)
    if origin is not None or not isinstance(annotation, type):
        return False
    if annotation in _CLOSED or issubclass(annotation, enum.Enum):
        return True
    if issubclass(annotation, pydantic.BaseModel):
        fields = annotation.model_fields.values()
        plain = annotation.model_config.get("extra") != "allow"
        return plain and all(_closed(f.annotation, seen) for f in fields)
    return False
