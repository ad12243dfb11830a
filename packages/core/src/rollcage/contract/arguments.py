"""Validate a call's arguments, and put them into canonical form (DESIGN §1, §2)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import pydantic
import pydantic_core
import rfc8785

from rollcage.contract.schema import as_schema_says, field_forms, is_signature
from rollcage.errors import ArgumentsInvalid, ContractError, Unencodable
from rollcage.fingerprint.identity import jcs, jcs_of_plain, jcs_of_scalars
from rollcage.fingerprint.transcript import MESSAGES, Question, Transcript
from rollcage.values.codec import TAG, encode, tagged
from rollcage.values.copies import own_copy
from rollcage.values.hiding import Hiding, Seal, hidden
from rollcage.values.survey import FOREIGN, survey

__all__ = ["Arguments", "ModelRequest", "Parameters", "Validated", "held_by"]

_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's


class Arguments(NamedTuple):
    """Hold the validated arguments of a call, which never change."""

    values: dict[str, Any]  # what the body receives
    canonical: dict[str, Any]  # what the trace shows
    digest_input: bytes  # the JCS of `canonical`


class Validated(dict[str, Any]):
    """Hold arguments that a framework has validated: a second time may fail or change them.

    Args:
        values: the values, by name.
        by: the instance of the model that validated them, for tools whose parameters are that
            model; or a base class of models, for tools whose parameters derive from it. Any other
            tool validates the values itself.
    """

    __slots__ = ("_by",)

    def __init__(
        self, values: Mapping[str, Any], by: pydantic.BaseModel | type[pydantic.BaseModel]
    ) -> None:
        super().__init__(values)
        self._by = by

    @classmethod
    def of(cls, model: pydantic.BaseModel) -> Validated:
        """Return a model's values, by the names of its fields."""
        values = {name: getattr(model, name) for name in type(model).__pydantic_fields__}
        return cls(values | (model.__pydantic_extra__ or {}), model)

    def taken_by(self, schema: type[pydantic.BaseModel]) -> pydantic.BaseModel | None:
        """Return an instance of a tool's parameters; None if the tool validates its own."""
        if isinstance(self._by, type):
            return held_by(schema, self) if issubclass(schema, self._by) else None
        return self._by if type(self._by) is schema else None


class ModelRequest(dict[str, Any]):
    """Hold the arguments of a model's call whose messages are in a transcript.

    Args:
        arguments: all arguments; `messages` are the first ones of the transcript.
        transcript: has the messages.
        has_changed: tells whether the framework's own messages have changed since.
    """

    __slots__ = ("has_changed", "transcript")

    def __init__(
        self,
        arguments: Mapping[str, Any],
        transcript: Transcript,
        has_changed: Callable[[], bool],
    ) -> None:
        super().__init__(arguments)
        self.transcript, self.has_changed = transcript, has_changed


M = TypeVar("M", bound="pydantic.BaseModel")  # as text: not imported

_OF_CONSTRUCT: Final = frozenset({"cls", "_fields_set"})  # what `model_construct` takes for itself


def held_by(model: type[M], values: Mapping[str, Any]) -> M:
    """Return an instance with these values, none of them validated, under any names."""
    taken = values.keys() & _OF_CONSTRUCT
    if not taken:
        return model.model_construct(**values)
    rest = {name: each for name, each in values.items() if name not in taken}
    made: Any = model.model_construct(**rest)
    for name in taken:
        if name in model.__pydantic_fields__:
            made.__dict__[name] = values[name]
            made.__pydantic_fields_set__.add(name)
        elif made.__pydantic_extra__ is not None:
            made.__pydantic_extra__[name] = values[name]
    return cast("M", made)


class Parameters:
    """Bind the arguments of a call to a tool's parameters, in canonical form.

    Args:
        tool: the name of the tool, for errors.
        schema: the Pydantic model of the arguments, or a JSON Schema.
        secret: names of parameters whose values never reach the disk.

    Attributes:
        secret: the given names, and the names that a JSON Schema marks as a password.
        names: the names of the declared parameters.
        accepts_more: whether arguments without a declared parameter are accepted.

    Raises:
        ContractError: a schema that would fail or be misread later.
    """

    def __init__(
        self,
        tool: str,
        schema: type[pydantic.BaseModel] | Mapping[str, Any],
        secret: frozenset[str],
    ) -> None:
        self._tool = tool
        self._schema = schema
        self.secret = secret
        forms: dict[str, Any] = {}
        if isinstance(schema, Mapping):
            self.secret |= self._passwords(schema)
            self.names = frozenset(schema.get("properties") or {})
            self.accepts_more = schema.get("additionalProperties", True) is not False
        else:
            try:
                schema.model_rebuild()
            except (pydantic.PydanticUserError, NameError) as error:
                raise ContractError(f"{tool}: its parameters have no schema: {error}") from error
            self.names = frozenset(schema.__pydantic_fields__)
            self.accepts_more = schema.model_config.get("extra") == "allow"
            forms = field_forms(schema)
        unknown = self.secret - self.names
        if unknown and not self.accepts_more:
            raise ContractError(
                f"{tool}: secret={sorted(unknown)} names no parameter; it has {sorted(self.names)}"
            )
        # Fields with tags, and fields with possible tags; all others are dumped to JSON unchanged
        # (DESIGN §2).
        wide = {name for name, form in forms.items() if form is False or name in self.secret}
        self._wide = frozenset(wide)
        checks = {n: form for n, form in forms.items() if callable(form) and n not in wide}
        self._shared = wide | checks.keys()  # what a caller may still hold after it was validated
        self._checks: Mapping[str, Callable[[Any], Any]] = checks
        # Arguments that are all scalars are then their own canonical form.
        plain = bool(forms) and not self._shared and not self.accepts_more
        self._dumps_plainly = plain and "".join(forms).isascii()

    def _passwords(self, schema: Mapping[str, Any]) -> set[str]:
        properties: Any = schema.get("properties", {})
        required: object = schema.get("required", [])
        if not isinstance(properties, Mapping):
            raise ContractError(f"{self._tool}: the `properties` of its JSON Schema are no object")
        if not isinstance(required, list | tuple):
            raise ContractError(f"{self._tool}: `required` of its JSON Schema is no list")
        if TAG in properties:
            raise ContractError(f"{self._tool}: no parameter can be called {TAG!r}")
        named: Mapping[str, Any] = {**properties}
        return {name for name, each in named.items() if _word(each, "format") == "password"}

    @functools.cached_property
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        if isinstance(self._schema, Mapping):
            return dict(self._schema)
        return self._schema.model_json_schema()

    def bind(self, raw: Mapping[str, Any], seal: Seal) -> Arguments:
        """Validate arguments by the schema and put them into canonical form.

        Raises:
            ArgumentsInvalid: they do not match the schema, or hold a value that has no encoding.
        """
        schema = self._schema
        try:
            if isinstance(schema, type):  # a faster check than for a Mapping
                if type(raw) is Validated and (model := raw.taken_by(schema)) is not None:
                    values = {**model.__dict__}  # the framework's instance is not changed
                else:
                    try:
                        model = schema.__pydantic_validator__.validate_python(raw)
                    except Exception as error:  # noqa: BLE001 - a validator may raise anything
                        raise self._invalid(error) from None
                    values = model.__dict__
                    if len(model.__pydantic_fields_set__) < len(raw) and is_signature(schema):
                        self._refuse_unknown(raw)
                    for name in self._shared:
                        values[name] = own_copy(values[name])  # the caller may change theirs
                plainly = self._dumps_plainly and len(values) == len(self.names)
                plain = jcs_of_scalars(values) if plainly else None
                if plain is None:
                    bound = self._bind_any(schema, model, values, seal)
                else:
                    bound = _tuple(Arguments, (values, dict(values), plain))
            else:
                bound = self._bind_schema(schema, raw, seal)
            if isinstance(seal, Hiding) and not seal.idle:
                return self._without_secrets(bound, seal)
            return bound
        except RecursionError:
            raise ArgumentsInvalid(f"{self._tool}: its arguments are nested too deep") from None
        except (rfc8785.CanonicalizationError, pydantic_core.PydanticSerializationError) as error:
            raise ArgumentsInvalid(
                f"{self._tool}: arguments that JSON can't hold: {error}"
            ) from None

    def bind_request(
        self, raw: ModelRequest, version: str, seal: Seal
    ) -> tuple[Arguments, Question | None]:
        """Bind the arguments of a model's call; its messages need not be looked at again.

        Args:
            raw: the arguments.
            version: the version of the model.
            seal: see `bind`.

        Returns:
            The arguments, and the request that has their JCS; with None, they have it themselves:
            there are secrets to look for, or the schema says more of messages than this.

        Raises:
            ArgumentsInvalid: see `bind`.
        """
        if (
            (isinstance(seal, Hiding) and not seal.idle)
            or not isinstance(self._schema, Mapping)
            or MESSAGES in self.secret
            or self._schema["properties"].get(MESSAGES) != {"type": "array"}
            or not raw.transcript.is_of(self._tool, version)
        ):
            return self.bind(raw, seal), None
        bound = self.bind({**raw, MESSAGES: []}, seal)
        rest = {name: each for name, each in bound.canonical.items() if name != MESSAGES}
        if any(name < MESSAGES for name in rest):
            return self.bind(raw, seal), None
        asked = Question(raw.transcript, len(raw[MESSAGES]), rest)
        values = {**bound.values, MESSAGES: raw[MESSAGES]}
        return Arguments(values, {MESSAGES: asked.messages, **rest}, b""), asked

    def check_strict(self, raw: Mapping[str, Any]) -> None:
        """Refuse arguments that need coercion.

        Raises:
            ArgumentsInvalid: names each of them, with its type and the declared one.
        """
        found = coerced(self._schema, raw, self.secret)
        if found:
            message = "; ".join(found)
            raise ArgumentsInvalid(f"{self._tool}: {message} (strict: nothing is coerced)")

    def has_changed(self, raw: Mapping[str, Any], bound: Arguments, seal: Seal) -> bool:
        """Tell whether arguments have changed since they were bound; defaults may differ."""
        try:
            now = self.bind(raw, seal).canonical
        except ArgumentsInvalid:
            return True
        differs = {
            name
            for name in now.keys() | bound.canonical.keys()
            if name not in now
            or name not in bound.canonical
            or jcs(now[name]) != jcs(bound.canonical[name])
        }
        return any(not self._names_of(name).isdisjoint(raw) for name in differs)

    def _names_of(self, name: str) -> set[Any]:
        """Return the names under which a parameter is passed, aliases included."""
        if isinstance(self._schema, Mapping) or name not in self._schema.__pydantic_fields__:
            return {name}
        field = self._schema.__pydantic_fields__[name]
        alias = field.validation_alias
        return {name, field.alias, alias if isinstance(alias, str) else None}

    def why_not(self, raw: Mapping[str, Any], seal: Seal) -> str:
        """Return why arguments do not match the schema; empty if they do."""
        try:
            self.bind(raw, seal)
        except ArgumentsInvalid as error:
            return str(error)
        return ""

    def _without_secrets(self, bound: Arguments, seal: Seal) -> Arguments:
        """Return the arguments without secrets, as in the trace; the call's key covers these."""
        found = hidden(bound.canonical, seal, self.names)
        if not found.found:
            return bound
        if TAG in found.value:
            raise ArgumentsInvalid(f"{self._tool}: the name of an argument holds a secret")
        return Arguments(bound.values, found.value, jcs(found.value))

    def _bind_any(
        self,
        schema: type[pydantic.BaseModel],
        model: pydantic.BaseModel,
        values: dict[str, Any],
        seal: Seal,
    ) -> Arguments:
        """Bind the arguments of a model, of any types."""
        wide = self._wide
        if self._checks:
            odd = [name for name, plain in self._checks.items() if not plain(values[name])]
            wide = wide.union(odd) if odd else wide
        canonical: dict[str, Any] = schema.__pydantic_serializer__.to_python(
            model, mode="json", by_alias=False, warnings=False, exclude={*wide} if wide else None,
        ) if len(wide) < len(values) else {}  # fmt: skip
        extra = model.__pydantic_extra__
        if extra:
            self._refuse_doubled(extra)
            values = {**values, **{name: own_copy(each) for name, each in extra.items()}}
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

    def _invalid(self, error: Exception) -> ArgumentsInvalid:
        """Return the error for arguments that do not match the schema."""
        if isinstance(error, pydantic.ValidationError):
            return ArgumentsInvalid(self._explain(error))
        # The user's own validator. Its message may hold a secret: only the error's type is shown.
        failed = type(error).__name__
        return ArgumentsInvalid(f"{self._tool}: its schema's own code raised {failed}")

    def _bind_schema(
        self, schema: Mapping[str, Any], raw: Mapping[str, Any], seal: Seal
    ) -> Arguments:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        missing = [repr(n) for n in schema.get("required") or () if n not in raw]
        if missing:
            raise ArgumentsInvalid(f"{self._tool}: missing argument {', '.join(missing)}")
        if not self.accepts_more:
            self._refuse_unknown(raw)
        values = {name: own_copy(value) for name, value in raw.items()}
        for name, says in properties.items():
            if name not in values and (default := _word(says, "default", ...)) is not ...:
                values[name] = copy.deepcopy(default)  # the body may change its arguments
        rest = schema.get("additionalProperties")
        said = {
            name: as_schema_says(properties.get(name, rest), value, schema)
            for name, value in values.items()
        }
        if self.secret.isdisjoint(said) and (plain := jcs_of_plain(said)) is not None:
            return Arguments(values, said, plain)
        canonical = {name: self._encode(name, value, seal) for name, value in said.items()}
        return Arguments(values, canonical, jcs(canonical))

    def _refuse_unknown(self, raw: Iterable[str]) -> None:
        for name in raw:
            if name not in self.names:
                listed = ", ".join(sorted(self.names)) or "none"
                raise ArgumentsInvalid(f"{self._tool}: unknown argument {name!r}; it has {listed}")

    def _refuse_doubled(self, extra: Iterable[str]) -> None:
        """Refuse an extra argument that would replace a declared parameter without being validated.

        A model may accept both: the parameter by its alias, and anything by its name.
        """
        for name in extra:
            if name in self.names:
                raise ArgumentsInvalid(
                    f"{self._tool}: argument {name!r} is there twice: pass it by its alias alone"
                )

    def _encode(self, name: str, value: Any, seal: Seal) -> Any:
        """Encode an argument in tagged form; a secret one as its HMAC."""
        if name == TAG:
            raise ArgumentsInvalid(f"{self._tool}: no argument can be called {TAG!r}")
        secret = name in self.secret
        try:
            encoded: Any = encode(value, seal, path=name)
        except Unencodable as error:
            reason = f"{name}: a secret that has no encoding" if secret else str(error)
            raise ArgumentsInvalid(f"{self._tool}: argument {reason}") from None
        if secret and _word(encoded, TAG) != "secret":
            return tagged("secret", seal("value:" + jcs(encoded).decode()))
        return encoded

    def _explain(self, error: pydantic.ValidationError) -> str:
        """Describe the invalid arguments; the values stay out, because they may be secret."""
        parts: list[str] = []
        for each in error.errors(include_input=False, include_url=False, include_context=False):
            where = each["loc"] or ("arguments",)
            if where[0] in self._hidden:  # the validator's message may hold the value
                parts.append(
                    f"{where[0]}: {_SAYABLE.get(each['type'], 'this secret is not valid')}"
                )
            else:
                parts.append(f"{'.'.join(map(str, where))}: {each['msg']}")
        return f"{self._tool}: " + "; ".join(parts)

    @property
    def secret_names(self) -> frozenset[str]:
        """Return the names under which a secret argument may be passed, aliases included."""
        return frozenset(name for name in self._hidden if isinstance(name, str))

    @functools.cached_property
    def _hidden(self) -> set[Any]:
        """Return the names of secret parameters, aliases included."""
        return set[Any]().union(*map(self._names_of, self.secret))


_SAYABLE: Final = {"missing": "Field required"}  # error types that reveal nothing of the value


def _word(schema: Any, word: str, otherwise: Any = None) -> Any:
    """Return the value of a keyword of a schema; the schema may be anything, not only an object."""
    if not isinstance(schema, dict):
        return otherwise
    found: dict[str, Any] = schema
    return found.get(word, otherwise)


# --- strict tools ---

_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}
_OTHER: Final = ("missing", "extra_forbidden")  # of a framework's own arguments, which come later
_WANTED: Final = "Input should be "


def coerced(
    schema: type[pydantic.BaseModel] | Mapping[str, Any],
    raw: Mapping[str, Any],
    secret: frozenset[str],
) -> list[str]:
    """A message for each argument that does not have its declared type: both types are named.

    Args:
        schema: the Pydantic model of the tool's arguments, or their JSON Schema.
        raw: the arguments, as they were requested.
        secret: names whose values are not shown; their types are.
    """
    if isinstance(schema, Mapping):
        return _by_json_schema(schema, raw)
    validator = schema.__pydantic_validator__
    in_python = _errors(lambda: validator.validate_python(raw, strict=True))
    if not in_python:
        return []
    try:
        text = pydantic_core.to_json(dict(raw))
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError):
        in_json = in_python
    else:
        in_json = _errors(lambda: validator.validate_json(text, strict=True))
    odd = {each["loc"][0] for each in in_python if each["loc"]}
    return [
        _message(schema, each, secret)
        for each in in_json
        if each["loc"] and each["loc"][0] in odd and each["type"] not in _OTHER
    ]


def _errors(validate: Callable[[], Any]) -> list[Any]:
    try:
        validate()
    except pydantic.ValidationError as error:
        return cast("list[Any]", error.errors(include_url=False, include_context=False))
    except Exception:  # noqa: BLE001 - the user's own validator: `bind` reports its errors
        return []
    return []


def _message(schema: type[pydantic.BaseModel], error: Any, secret: frozenset[str]) -> str:
    place = error["loc"]
    named = ".".join(map(str, place))
    given = type(error["input"]).__name__
    field = schema.__pydantic_fields__.get(str(place[0]))
    wanted = str(error["msg"]).removeprefix(_WANTED)
    if len(place) == 1 and field is not None:
        annotation: Any = field.annotation
        plain = isinstance(annotation, type)
        wanted = annotation.__name__ if plain else str(annotation).replace("typing.", "")
    elif place[0] in secret:
        wanted = "another type"
    return f"{named}: a value of type {given} was given, {wanted} is wanted"


def _by_json_schema(schema: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    found: list[str] = []
    for name, value in raw.items():
        says: Any = properties.get(name)
        types = cast("Mapping[str, Any]", says).get("type") if isinstance(says, Mapping) else None
        wanted: list[Any] = [types] if isinstance(types, str) else cast("list[Any]", types or [])
        if wanted and not any(_is(value, each) for each in wanted):
            given = type(value).__name__
            words = " or ".join(map(str, wanted))
            found.append(f"{name}: a value of type {given} was given, {words} is wanted")
    return found


def _is(value: Any, named: Any) -> bool:
    """Whether a value has a type of JSON Schema; an unknown type refuses nothing."""
    kinds = _JSON_TYPES.get(named) if isinstance(named, str) else None
    if kinds is None:
        return True
    if isinstance(value, bool) and named in ("integer", "number"):
        return False
    if named == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds)
