"""Hold a tool's contract: its declaration (DESIGN §1)."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import string
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, Final, Literal, cast, get_args, get_origin

import pydantic

from rollcage.contract.arguments import Arguments, Parameters
from rollcage.contract.drift import OnDrift, Promise, type_of
from rollcage.contract.permissions import read_permission
from rollcage.contract.schema import signature_model
from rollcage.errors import ContractError
from rollcage.values.hiding import Seal
from rollcage.values.registered import Types, named_in

__all__ = ["Contract", "Effect", "OnMiss", "Source", "attach_body", "plain_body"]

Effect = Literal["pure", "read", "write", "scope"]
"""`pure` depends on its arguments only, `read` observes the world, `write` changes it. A `scope`
acts through guarded calls only (an agent as a tool): a resume runs its body again, so its outcome
is never unknown."""

OnMiss = Literal["live", "fail", "error_result"]
"""What a replay does if it finds no recorded step: run the tool, halt, or return an error."""

Source = Literal["recorded", "live"]
"""Whether a recorded step may be replayed for a call at all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """Declare a tool.

    Attributes:
        name: the tool's original name, never a framework's sanitised form.
        version: the author's version; a step recorded under another version is not replayed.
        description: a text for people and models.
        parameters: the Pydantic model of the arguments, or a JSON Schema, such as an MCP tool's.
        returns: the type of the output, whose classes a replay restores. By default the function's
            annotation; if declared, outputs are checked against it.
        effect: see `Effect`; an undeclared tool is a `write`.
        idempotent: whether two executions with one idempotency key count as one.
        risk: a label for policies ("low", "high", …).
        permissions: the resources that the tool may touch: `fs:read`, `fs:read:<root>`,
            `fs:write:<root>`, `net:<host>:<port>`, `process`; any other word is for policies alone.
            `rollcage_policy.Permissions` confines the body of a tool that declares some.
        raises: exception types that a replay raises as themselves. If a write raises such an error,
            its effect did not happen, even if the type would otherwise make the outcome unknown.
        unknown_on: exception types after which the outcome of a write is unknown, besides the
            built-in ones: timeouts, lost connections, and errors derived from or chained to one
            (see `rollcage.contract.unknown_errors`).
        secret: names of parameters whose values never reach the disk.
        labels: the labels of the results (`untrusted`, `secret`, any word); later calls whose
            arguments hold a value of such a result carry them too; see `rollcage_policy.labels`.
        strict: whether arguments that need coercion are refused: `"3"` for an int. Otherwise the
            tool's own schema coerces them.
        on_miss: see `OnMiss`; None: the session's replay mode decides.
        source: see `Source`.
        framework: the framework whose native values the results may be; see
            `rollcage.trace.decode`.
        framework_raises: the framework's own exceptions, which a replay raises as themselves too.
        undo: returns the compensating calls of a call (see `rollcage.compensate`), or None if the
            call can't be undone. It receives `args`, `before` and `result`, as far as its signature
            names them; without `result` the undo is planned before the effect.
        observe: takes the arguments and returns the state that the tool changes, by resource; sync
            or async. It is called before and after the effect, and around its undo.
            Like `undo` and `probe`, it may call tools that only read: their calls are gated, but
            are no steps, and are never answered from the record.
        probe: finds out whether a call of unknown outcome happened: returns `rollcage.Happened`,
            `rollcage.DidNotHappen`, or None if it can't tell; sync or async. It receives `args`,
            `key` (the idempotency key) and `before`, as far as its signature names them.
        once: names the effect, over all runs in a store: a template with the names of parameters,
            as `"refund/{payment}"`. A second call with an equal name gets the outcome of the first.
        on_drift: the response to an output that breaks the contract: `"error"` raises
            `OutputDrift`, `"report"` reports it in the trace only. None: a breach of a declared
            output (`returns`, the next three fields) raises, a mismatch with the function's
            annotation is reported, and the annotation of a framework's own tool is not checked.
        json_output: a text output must be JSON: any JSON (True), or JSON of this type.
        allow_empty: whether None, a blank text or an empty container is accepted as output.
        max_output: the size limit of the output's JSON, in bytes.
        annotated: whether `returns` is only the function's annotation.
        function: the function from which the contract was made, if any.
        takes: the parameters, ready to bind a call's arguments.
        captures: whether `undo`, `observe` or `probe` is declared.
        promise: the checks on an output; None without any.
        types: the classes that the return type names: a replay restores their values.
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
    unknown_on: tuple[type[Exception], ...] = ()
    secret: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    strict: bool = False
    on_miss: OnMiss | None = None
    source: Source = "recorded"
    framework: str = ""
    framework_raises: tuple[type[Exception], ...] = ()
    undo: Callable[..., Any] | None = None
    observe: Callable[[dict[str, Any]], Any] | None = None
    probe: Callable[..., Any] | None = None
    once: str = ""
    on_drift: OnDrift | None = None
    json_output: Any = False
    allow_empty: bool = True
    max_output: int | None = None
    annotated: bool = dataclasses.field(default=False, repr=False, compare=False)
    function: Callable[..., Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    takes: Parameters = dataclasses.field(init=False, repr=False, compare=False)
    captures: bool = dataclasses.field(init=False, repr=False, compare=False, default=False)
    promise: Promise | None = dataclasses.field(init=False, repr=False, compare=False, default=None)
    types: Types = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        takes = Parameters(self.name, self.parameters, self.secret)
        object.__setattr__(self, "takes", takes)
        object.__setattr__(self, "secret", takes.secret)
        self._check_undo()
        self._check_once()
        object.__setattr__(self, "_return_adapter", _adapter(self.returns))
        object.__setattr__(self, "types", Types(named_in(self.returns)))
        captures = (self.undo, self.observe, self.probe)
        object.__setattr__(self, "captures", any(each is not None for each in captures))
        object.__setattr__(self, "promise", self._promise())

    _return_adapter: pydantic.TypeAdapter[Any] | None = dataclasses.field(
        init=False, repr=False, compare=False
    )

    def _check(self) -> None:
        """Refuse a declaration that would fail or be misread later."""
        if not self.name:
            raise ContractError("a tool needs a name; pass name=")
        for field in ("name", "version", "description", "risk"):
            _is_text(self, field, getattr(self, field))
        if isinstance(cast("object", self.labels), str) or not all(self.labels):
            raise ContractError(f"{self.name}: labels={self.labels!r} is not a tuple of words")
        for label in self.labels:
            _is_text(self, "labels", label)
        _one_of(self, "effect", get_args(Effect))
        _one_of(self, "source", get_args(Source))
        _one_of(self, "on_miss", (None, *get_args(OnMiss)))
        _one_of(self, "on_drift", (None, *get_args(OnDrift)))
        if self.max_output is not None and not self.max_output > 0:
            raise ContractError(f"{self.name}: max_output={self.max_output!r} allows no output")
        try:
            for word in self.permissions:
                read_permission(word)
        except ContractError as error:
            raise ContractError(f"{self.name}: {error}") from None
        for field in ("raises", "unknown_on", "framework_raises"):
            for each in cast("tuple[object, ...]", getattr(self, field)):
                if not (isinstance(each, type) and issubclass(each, Exception)):
                    raise ContractError(f"{self.name}: {field}={each!r} is not an exception type")
        both = set(self.raises) & set(self.unknown_on)
        if both:
            names = ", ".join(sorted(each.__name__ for each in both))
            raise ContractError(
                f"{self.name}: {names} is in raises= (it did not happen) and in unknown_on= "
                f"(it may have happened)"
            )

    def _check_undo(self) -> None:
        """Refuse an undo, observe or probe on a tool that changes nothing."""
        for field, words in _ABOUT_EFFECTS.items():
            function = getattr(self, field)
            if function is None:
                continue
            if self.effect != "write":
                raise ContractError(
                    f"{self.name}: {field}= is for writes; a {self.effect!r} has nothing of its "
                    f"own to undo"
                )
            if not callable(function):
                raise ContractError(f"{self.name}: {field}={function!r} can't be called")
            if words:
                _words(self.name, field, function, words)
        if self.undo is not None and inspect.iscoroutinefunction(self.undo):
            raise ContractError(
                f"{self.name}: undo= is async; it only plans, so make it a plain function"
            )

    def _check_once(self) -> None:
        """Refuse a template that names anything but a parameter, or a secret one."""
        _is_text(self, "once", self.once)
        if not self.once:
            return
        if self.effect != "write":
            raise ContractError(
                f"{self.name}: once= is for writes; a {self.effect!r} has no effect of its own"
            )
        try:
            parts = _FORMATTER.parse(self.once)
            names = [name for _, name, _, _ in parts if name is not None]
            plain = all(not spec and not form for _, _, spec, form in _FORMATTER.parse(self.once))
        except ValueError as error:
            raise ContractError(f"{self.name}: once={self.once!r}: {error}") from None
        for name in names:
            if not plain or name not in self.takes.names:
                raise ContractError(
                    f"{self.name}: once={self.once!r} may name parameters only, as {{name}}: "
                    f"{', '.join(sorted(self.takes.names)) or 'there are none'}"
                )
            if name in self.secret:
                raise ContractError(
                    f"{self.name}: once={self.once!r} names {name!r}, which is a secret, and the "
                    f"key is kept in the store"
                )

    # --- arguments -------------------------------------------------------------------------------

    @property
    def parameter_names(self) -> frozenset[str]:
        """Return the names of the declared parameters."""
        return self.takes.names

    @property
    def accepts_more(self) -> bool:
        """Tell whether arguments without a declared parameter are accepted."""
        return self.takes.accepts_more

    @property
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return self.takes.json_schema

    def bind(self, raw: Mapping[str, Any], seal: Seal) -> Arguments:
        """Validate arguments by the tool's schema and put them into canonical form.

        Raises:
            ArgumentsInvalid: they do not match the schema, or hold a value that has no encoding.
        """
        return self.takes.bind(raw, seal)

    # --- undo ------------------------------------------------------------------------------------

    @property
    def reversible(self) -> bool:
        """Tell whether the effect can be undone; True for a tool that changes nothing."""
        return self.undo is not None or self.effect != "write"

    @functools.cached_property
    def undo_words(self) -> frozenset[str]:
        """Return the keywords of `args`, `before` and `result` that `undo` receives."""
        return _words(self.name, "undo", self.undo, _ABOUT_EFFECTS["undo"])

    @functools.cached_property
    def probe_words(self) -> frozenset[str]:
        """Return the keywords of `args`, `key` and `before` that `probe` receives."""
        return _words(self.name, "probe", self.probe, _ABOUT_EFFECTS["probe"])

    @functools.cached_property
    def streams(self) -> bool:
        """Tell whether the tool is a generator function, sync or async: it returns chunks."""
        return inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(
            self.function
        )

    # --- results ---------------------------------------------------------------------------------

    @property
    def known_errors(self) -> tuple[type[Exception], ...]:
        """Return the exception types that a replay raises as themselves."""
        return (*self.raises, *self.framework_raises)

    @property
    def typed(self) -> bool:
        """Tell whether a declared return type restores typed values."""
        return self._return_adapter is not None

    def revive(self, plain: Any) -> Any:
        """Restore a recorded result through the declared return type.

        Raises:
            ValueError: the recorded data do not match it.
        """
        if self._return_adapter is None:
            raise ValueError(f"{self.name} declares no return type")
        return self._return_adapter.validate_python(plain, by_alias=False, by_name=True)

    def _promise(self) -> Promise | None:
        """Return the checks on an output, if any are declared."""
        returns, streams = type_of(self.returns)
        checked = self.on_drift is not None or not self.framework or self.annotated
        adapter: pydantic.TypeAdapter[Any] | None = None
        if checked:
            adapter = _adapter(returns) if streams else self._return_adapter
        shape: pydantic.TypeAdapter[Any] | None = None
        if self.json_output is not False:
            shape = _adapter(object if self.json_output is True else self.json_output)
            if shape is None:
                raise ContractError(f"{self.name}: json_output={self.json_output!r} is not a type")
        if adapter is None and shape is None and self.allow_empty and self.max_output is None:
            return None
        return Promise(
            adapter,
            shape,
            streams=streams,
            allow_empty=self.allow_empty,
            max_bytes=self.max_output,
            framework=self.framework,
            on_type=self.on_drift or ("report" if self.annotated else "error"),
            on_rest=self.on_drift or "error",
            is_of_text=returns is str,
        )

    # --- from a function -------------------------------------------------------------------------

    @classmethod
    def of(cls, function: Callable[..., Any], **declared: Any) -> Contract:
        """Make the contract of a Python function from its signature, its docstring and `declared`.

        Raises:
            ContractError: a parameter can't be passed by name, or has no usable type.
        """
        name = declared.pop("name", None) or getattr(function, "__name__", "")
        unknown = declared.keys() - _DECLARABLE
        if unknown:
            known = ", ".join(sorted(_DECLARABLE))
            raise ContractError(
                f"{name}: {sorted(unknown)} are not options of a tool; those are: {known}"
            )
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise ContractError(f"{name}: its annotations can't be resolved: {error}") from error
        for key, kind in _SEVERAL.items():
            each = declared.get(key) or ()
            declared[key] = kind([each] if isinstance(each, str | type) else each)
        _check_stream(name, hints.get("return"))
        annotated = declared.get("returns") is None
        returns = hints.get("return") if annotated else declared["returns"]
        return cls(
            name=name,
            description=declared.pop("description", None) or inspect.getdoc(function) or "",
            parameters=signature_model(name, function, hints),
            annotated=annotated,
            function=function,
            **{**declared, "returns": returns},
        )


def _check_stream(name: str, returns: Any) -> None:
    """Refuse a generator that receives values or returns one: neither would be recorded."""
    if get_origin(returns) not in (Generator, AsyncGenerator):
        return
    chunk, *rest = get_args(returns)
    if any(each not in (None, type(None), Any) for each in rest):
        shown = getattr(chunk, "__name__", repr(chunk))
        kind = "AsyncIterator" if get_origin(returns) is AsyncGenerator else "Iterator"
        raise ContractError(
            f"{name}: of a stream the chunks are recorded, and neither what is sent to it nor what "
            f"it returns at its end: declare {kind}[{shown}], and yield all that it gives"
        )


_DECLARABLE: Final = frozenset(
    field.name for field in dataclasses.fields(Contract) if field.init
) - {"parameters", "framework", "framework_raises", "function", "annotated"}  # fmt: skip
_FORMATTER: Final = string.Formatter()
_SEVERAL: Final[dict[str, Callable[[Any], Any]]] = {
    "permissions": tuple, "raises": tuple, "unknown_on": tuple, "secret": frozenset,
    "labels": tuple,
}  # fmt: skip


_ABOUT_EFFECTS: Final[dict[str, tuple[str, ...]]] = {
    "undo": ("args", "before", "result"), "observe": (), "probe": ("args", "key", "before"),
}  # fmt: skip


def _words(name: str, field: str, function: Any, known: tuple[str, ...]) -> frozenset[str]:
    """Return the keywords of `known` that a function's signature names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ContractError(f"{name}: {field}= has no readable signature") from None
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
        return None  # a type that Pydantic can't build restores nothing


_BODY: Final = "__rollcage_body__"


def attach_body(wrapper: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Register the wrapper that guards the calls of a tool's body."""
    setattr(wrapper, _BODY, body)


def plain_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under `@rollcage.tool`, for a caller that guards it itself, once.

    A user's own wrapper around a declared function stays: it guards the function by calling it.
    `functools.wraps` copies all attributes of that function to the wrapper, and wraps the function
    itself.
    """
    body = getattr(function, _BODY, None)
    own: Callable[..., Any] = function if body is None else body
    return own if getattr(function, "__wrapped__", None) is own else function
