"""What is declared of a tool, and the canonical form of its arguments (DESIGN §1, §2)."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import pydantic
import pydantic_core
import rfc8785

from rollcage.drift import OnDrift, Promise, type_of
from rollcage.errors import ArgumentsInvalid, ContractError, Unencodable
from rollcage.fingerprint import jcs
from rollcage.permissions import grants_of
from rollcage.schema import as_schema_says, field_forms, is_signature, signature_model
from rollcage.trace.codec import FOREIGN, TAG, Hiding, Seal, encode, hidden, survey, tagged

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
        permissions: what it may touch (see `rollcage.permissions`): `fs:read`, `fs:read:<root>`,
            `fs:write:<root>`, `net:<host>:<port>`, `process`; any other word is for policies alone.
            A session with `enforce=` holds the body of a tool that declares some to them.
        raises: exception types that come back as themselves in replay.
        secret: names of parameters whose values never reach the disk.
        labels: what its results carry (`untrusted`, `secret`, any word), into later calls too whose
            arguments hold a value of theirs; see `rollcage.gate.Labels`.
        on_miss: see `OnMiss`; None leaves it to the session's replay mode.
        source: see `Source`.
        framework: whose native values its results may be; see `rollcage.trace.decode`.
        undo: gives the compensating calls of a call (see `rollcage.compensate`), or None where it
            can't be taken back. It is called with those of `args`, `before` and `result` that its
            signature names; without `result` it is planned before the effect.
        observe: told the arguments, gives by resource the state that the tool changes; sync or
            async. It is called before and after the effect, and around its undo.
        probe: asked whether a call of unknown outcome happened: gives `rollcage.Happened`,
            `rollcage.DidNotHappen`, or None where it can't tell; sync or async. It is called with
            those of `args`, `key` (the idempotency key) and `before` that its signature names.
        on_drift: what an output does that breaks the contract: `"error"` raises `OutputDrift`,
            `"report"` tells it in the trace alone. None: an error; but a framework's own tool,
            whose annotations were not made for it, is held to the next three fields only.
        json_output: an output of text must be JSON: any (True), or of this type.
        allow_empty: whether None, a blank text or an empty container is an output.
        max_output: the most bytes that the output's JSON may have.
        function: whose contract it is, where it was made from a function.
        captures: whether one of `undo`, `observe` and `probe` is declared.
        promise: what is checked of an output; None where nothing is.
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
    labels: tuple[str, ...] = ()
    on_miss: OnMiss | None = None
    source: Source = "recorded"
    framework: str = ""
    undo: Callable[..., Any] | None = None
    observe: Callable[[dict[str, Any]], Any] | None = None
    probe: Callable[..., Any] | None = None
    on_drift: OnDrift | None = None
    json_output: Any = False
    allow_empty: bool = True
    max_output: int | None = None
    function: Callable[..., Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    captures: bool = dataclasses.field(init=False, repr=False, compare=False, default=False)
    promise: Promise | None = dataclasses.field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        self._check()
        forms: dict[str, Any] = {}
        if not isinstance(self.parameters, Mapping):
            forms = field_forms(self.parameters)
        wide = {name for name, form in forms.items() if form is False or name in self.secret}
        checks = {n: form for n, form in forms.items() if callable(form) and n not in wide}
        # The fields that are tagged, and those that may be; all others are dumped to JSON as they
        # are (DESIGN §2).
        object.__setattr__(self, "_wide", frozenset(wide))
        object.__setattr__(self, "_checks", checks)
        object.__setattr__(self, "_return_adapter", _adapter(self.returns))
        said = (self.undo, self.observe, self.probe)
        object.__setattr__(self, "captures", any(each is not None for each in said))
        object.__setattr__(self, "promise", self._promise())

    _wide: frozenset[str] = dataclasses.field(init=False, repr=False, compare=False)
    _checks: dict[str, Callable[[Any], bool]] = dataclasses.field(
        init=False, repr=False, compare=False
    )
    _return_adapter: pydantic.TypeAdapter[Any] | None = dataclasses.field(
        init=False, repr=False, compare=False
    )

    def _check(self) -> None:
        """Refuse a declaration that would fail, or mean something else, later on."""
        if not self.name:
            raise ContractError("a tool needs a name; pass name=")
        for field in ("name", "version", "description", "risk"):
            _is_text(self, field, getattr(self, field))
        if isinstance(cast("object", self.labels), str) or not all(self.labels):
            raise ContractError(f"{self.name}: labels={self.labels!r} is no tuple of words")
        for label in self.labels:
            _is_text(self, "labels", label)
        _one_of(self, "effect", get_args(Effect))
        _one_of(self, "source", get_args(Source))
        _one_of(self, "on_miss", (None, *get_args(OnMiss)))
        _one_of(self, "on_drift", (None, *get_args(OnDrift)))
        if self.max_output is not None and not self.max_output > 0:
            raise ContractError(f"{self.name}: max_output={self.max_output!r} lets nothing through")
        try:
            grants_of(self.permissions)
        except ContractError as error:
            raise ContractError(f"{self.name}: {error}") from None
        for each in cast("tuple[object, ...]", self.raises):
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise ContractError(f"{self.name}: raises={each!r} is no exception type")
        if isinstance(self.parameters, Mapping):
            self._check_schema(self.parameters)
        else:
            try:
                self.parameters.model_rebuild()
            except (pydantic.PydanticUserError, NameError) as error:
                raise ContractError(
                    f"{self.name}: its parameters have no schema: {error}"
                ) from error
        unknown = self.secret - self.parameter_names
        if unknown and not self.accepts_more:
            raise ContractError(
                f"{self.name}: secret={sorted(unknown)} names no parameter; "
                f"it has {sorted(self.parameter_names)}"
            )

        self._check_undo()

    def _check_undo(self) -> None:
        """Refuse what says how to take back something that changes nothing."""
        for field, words in _ABOUT_EFFECTS.items():
            function = getattr(self, field)
            if function is None:
                continue
            if self.effect != "write":
                raise ContractError(
                    f"{self.name}: {field}= is for writes; a {self.effect!r} has nothing of its "
                    f"own to take back"
                )
            if not callable(function):
                raise ContractError(f"{self.name}: {field}={function!r} can't be called")
            if words:
                _words(self.name, field, function, words)
        if self.undo is not None and inspect.iscoroutinefunction(self.undo):
            raise ContractError(f"{self.name}: undo= is async; it plans only, and must not wait")

    def _check_schema(self, schema: Mapping[str, Any]) -> None:
        properties: Any = schema.get("properties", {})
        required: object = schema.get("required", [])
        if not isinstance(properties, Mapping):
            raise ContractError(f"{self.name}: the `properties` of its JSON Schema are no object")
        if not isinstance(required, list | tuple):
            raise ContractError(f"{self.name}: `required` of its JSON Schema is no list")
        if TAG in properties:
            raise ContractError(f"{self.name}: no parameter can be called {TAG!r}")
        named = cast("Mapping[str, Any]", properties)
        passwords = {n for n, s in named.items() if _word(s, "format") == "password"}
        object.__setattr__(self, "secret", self.secret | passwords)

    @functools.cached_property
    def parameter_names(self) -> frozenset[str]:
        """The names of the declared parameters."""
        if isinstance(self.parameters, Mapping):
            return frozenset(self.parameters.get("properties") or {})
        return frozenset(self.parameters.__pydantic_fields__)

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

    # --- arguments -------------------------------------------------------------------------------

    def bind(self, raw: Mapping[str, Any], seal: Seal) -> Arguments:
        """Validate arguments by the tool's schema and bring them into canonical form.

        Raises:
            ArgumentsInvalid: they do not pass, or hold a value that has no encoding.
        """
        parameters = self.parameters
        try:
            if isinstance(parameters, type):  # quicker to tell than a Mapping
                bound = self._bind_model(parameters, raw, seal)
            else:
                bound = self._bind_schema(parameters, raw, seal)
            return self._without_credentials(bound, seal) if isinstance(seal, Hiding) else bound
        except RecursionError:
            raise ArgumentsInvalid(f"{self.name}: its arguments are nested too deep") from None
        except (rfc8785.CanonicalizationError, pydantic_core.PydanticSerializationError) as error:
            raise ArgumentsInvalid(
                f"{self.name}: arguments that JSON can't hold: {error}"
            ) from None

    def _without_credentials(self, bound: Arguments, seal: Seal) -> Arguments:
        """The arguments as the trace may show them; their key is made of that form."""
        found = hidden(bound.canonical, seal)
        if not found.found:
            return bound
        if TAG in found.value:
            raise ArgumentsInvalid(f"{self.name}: the name of an argument holds a credential")
        return Arguments(bound.values, found.value, jcs(found.value))

    def _bind_model(
        self, parameters: type[pydantic.BaseModel], raw: Mapping[str, Any], seal: Seal
    ) -> Arguments:
        try:
            model = parameters.__pydantic_validator__.validate_python(raw)
        except pydantic.ValidationError as error:
            raise ArgumentsInvalid(self._explain(error)) from None
        except Exception as error:  # noqa: BLE001 - a validator may raise anything
            # A validator of the user's own. Its words may hold a secret: only its type is told.
            failed = type(error).__name__
            raise ArgumentsInvalid(f"{self.name}: its schema's own code raised {failed}") from None
        values: dict[str, Any] = model.__dict__
        wide = self._wide
        if self._checks:
            odd = [name for name, plain in self._checks.items() if not plain(values[name])]
            wide = wide.union(odd) if odd else wide
        if len(model.__pydantic_fields_set__) < len(raw) and is_signature(parameters):
            self._refuse_unknown(raw)
        canonical: dict[str, Any] = parameters.__pydantic_serializer__.to_python(
            model, mode="json", by_alias=False, warnings=False, exclude={*wide} if wide else None,
        ) if len(wide) < len(values) else {}  # fmt: skip
        extra = model.__pydantic_extra__
        if extra:
            values = {**values, **extra}
            wide = wide.union(extra)
        level = survey(canonical)
        if level == FOREIGN:
            for name, each in canonical.items():
                if survey(each) == FOREIGN:
                    canonical[name] = self._encode(name, each, seal)
        elif not wide:
            return Arguments(values, canonical, jcs(canonical, level))
        for name in wide:
            canonical[name] = self._encode(name, values[name], seal)
        return Arguments(values, canonical, jcs(canonical))

    def _bind_schema(
        self, schema: Mapping[str, Any], raw: Mapping[str, Any], seal: Seal
    ) -> Arguments:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        missing = [repr(n) for n in schema.get("required") or () if n not in raw]
        if missing:
            raise ArgumentsInvalid(f"{self.name}: missing argument {', '.join(missing)}")
        if not self.accepts_more:
            self._refuse_unknown(raw)
        values = dict(raw)
        for name, says in properties.items():
            if name not in values and (default := _word(says, "default", ...)) is not ...:
                values[name] = copy.deepcopy(default)  # the body may change what it gets
        rest = schema.get("additionalProperties")
        canonical = {
            name: self._encode(
                name, as_schema_says(properties.get(name, rest), value, schema), seal
            )
            for name, value in values.items()
        }
        return Arguments(values, canonical, jcs(canonical))

    def _refuse_unknown(self, raw: Iterable[str]) -> None:
        known = self.parameter_names
        for name in raw:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise ArgumentsInvalid(f"{self.name}: unknown argument {name!r}; it has {listed}")

    def _encode(self, name: str, value: Any, seal: Seal) -> Any:
        """An argument in tagged form; a secret one as its HMAC."""
        if name == TAG:
            raise ArgumentsInvalid(f"{self.name}: no argument can be called {TAG!r}")
        secret = name in self.secret
        try:
            encoded: Any = encode(value, seal, path=name)
        except Unencodable as error:
            reason = f"{name}: a secret that has no encoding" if secret else str(error)
            raise ArgumentsInvalid(f"{self.name}: argument {reason}") from None
        if secret and _word(encoded, TAG) != "secret":
            return tagged("secret", seal("value:" + jcs(encoded).decode()))
        return encoded

    def _explain(self, error: pydantic.ValidationError) -> str:
        """What is wrong with which argument; the values stay out, they may be secret."""
        parts: list[str] = []
        for each in error.errors(include_input=False, include_url=False, include_context=False):
            where = each["loc"] or ("arguments",)
            if where[0] in self._hidden:  # a validator's own words may hold the value
                parts.append(
                    f"{where[0]}: {_SAYABLE.get(each['type'], 'this secret is not valid')}"
                )
            else:
                parts.append(f"{'.'.join(map(str, where))}: {each['msg']}")
        return f"{self.name}: " + "; ".join(parts)

    @functools.cached_property
    def _hidden(self) -> set[Any]:
        """The names of secret parameters, aliases included."""
        names: set[Any] = set(self.secret)
        if not isinstance(self.parameters, Mapping):
            fields = self.parameters.__pydantic_fields__
            for field in (fields[name] for name in self.secret if name in fields):
                names |= {
                    field.alias,
                    field.validation_alias if isinstance(field.validation_alias, str) else None,
                }
        return names

    # --- undo ------------------------------------------------------------------------------------

    @property
    def reversible(self) -> bool:
        """Whether its effect can be taken back; what changes nothing needs not."""
        return self.undo is not None or self.effect != "write"

    @functools.cached_property
    def undo_words(self) -> frozenset[str]:
        """With which of `args`, `before` and `result` its undo is called."""
        return _words(self.name, "undo", self.undo, _ABOUT_EFFECTS["undo"])

    @functools.cached_property
    def probe_words(self) -> frozenset[str]:
        """With which of `args`, `key` and `before` its probe is called."""
        return _words(self.name, "probe", self.probe, _ABOUT_EFFECTS["probe"])

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
        return self._return_adapter.validate_python(plain, by_alias=False, by_name=True)

    def _promise(self) -> Promise | None:
        """What is checked of an output, where anything is."""
        returns, streams = type_of(self.returns)
        checked = self.on_drift is not None or not self.framework
        adapter: pydantic.TypeAdapter[Any] | None = None
        if checked:
            adapter = _adapter(returns) if streams else self._return_adapter
        shape: pydantic.TypeAdapter[Any] | None = None
        if self.json_output is not False:
            shape = _adapter(object if self.json_output is True else self.json_output)
            if shape is None:
                raise ContractError(
                    f"{self.name}: json_output={self.json_output!r} is no type to check by"
                )
        if adapter is None and shape is None and self.allow_empty and self.max_output is None:
            return None
        return Promise(
            adapter,
            shape,
            streams=streams,
            allow_empty=self.allow_empty,
            max_bytes=self.max_output,
            framework=self.framework,
        )

    # --- from a function -------------------------------------------------------------------------

    @classmethod
    def of(cls, function: Callable[..., Any], **declared: Any) -> Contract:
        """The contract of a Python function: its signature, docstring and what is `declared`.

        Raises:
            ContractError: a parameter that can't be passed by name, or has no usable type.
        """
        name = declared.pop("name", None) or getattr(function, "__name__", "")
        unknown = declared.keys() - _DECLARABLE
        if unknown:
            known = ", ".join(sorted(_DECLARABLE))
            raise ContractError(f"{name}: {sorted(unknown)} can't be declared; what can: {known}")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise ContractError(f"{name}: its annotations can't be resolved: {error}") from error
        for key, kind in _SEVERAL.items():
            each = declared.get(key) or ()
            declared[key] = kind([each] if isinstance(each, str | type) else each)
        declared["on_drift"] = declared.get("on_drift") or "error"
        return cls(
            name=name,
            description=declared.pop("description", None) or inspect.getdoc(function) or "",
            parameters=signature_model(name, function, hints),
            returns=hints.get("return"),
            function=function,
            **declared,
        )


_DECLARABLE: Final = frozenset(
    field.name for field in dataclasses.fields(Contract) if field.init
) - {"parameters", "returns", "framework", "function"}  # fmt: skip
_SEVERAL: Final[dict[str, Callable[[Any], Any]]] = {
    "permissions": tuple, "raises": tuple, "secret": frozenset, "labels": tuple,
}  # fmt: skip
_SAYABLE: Final = {"missing": "Field required"}  # kinds of errors that tell nothing of a value


_ABOUT_EFFECTS: Final[dict[str, tuple[str, ...]]] = {
    "undo": ("args", "before", "result"), "observe": (), "probe": ("args", "key", "before"),
}  # fmt: skip


def _words(name: str, field: str, function: Any, known: tuple[str, ...]) -> frozenset[str]:
    """The keywords of `known` that a function's signature names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ContractError(f"{name}: {field}= has no signature to go by") from None
    words: set[str] = set()
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            return frozenset(known)
        if each.name in known and each.kind is not each.POSITIONAL_ONLY:
            words.add(each.name)
        elif each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            raise ContractError(
                f"{name}: {field}= wants {each.name!r}; it is called with {', '.join(known)}"
            )
    return frozenset(words)


def _is_text(contract: Contract, field: str, value: Any) -> None:
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ContractError(f"{contract.name!r}: {field}={value!r} is no text") from None


def _word(schema: Any, word: str, otherwise: Any = None) -> Any:
    """What an object says under a word; anything may stand where one is expected."""
    if not isinstance(schema, dict):
        return otherwise
    found: dict[str, Any] = schema
    return found.get(word, otherwise)


def _one_of(contract: Contract, field: str, allowed: tuple[Any, ...]) -> None:
    value = getattr(contract, field)
    if value not in allowed:
        raise ContractError(f"{contract.name}: {field}={value!r} is none of {list(allowed)}")


def _adapter(returns: Any) -> pydantic.TypeAdapter[Any] | None:
    if returns is None or returns is Any or returns is type(None):
        return None
    try:
        return pydantic.TypeAdapter(returns)
    except (pydantic.PydanticUserError, TypeError, NameError):
        return None  # a type that Pydantic can't build brings nothing back
