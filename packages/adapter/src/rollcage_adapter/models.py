"""Turn a model's call into a call of the session: equal questions make equal requests."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeVar

from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage.session.adapters import Answer

from rollcage_adapter.conversations import Conversations, MessageForm
from rollcage_adapter.guards import GUARD, BodyForm, GuardedBody, GuardedCall, guard_of
from rollcage_adapter.provider_tools import expose_settings
from rollcage_adapter.running import Running
from rollcage_adapter.shapes import is_list, is_model_class, is_object
from rollcage_adapter.swap import swapped

__all__ = [
    "GuardedModel",
    "ModelCall",
    "model_contract",
    "model_options",
    "model_request",
    "offered",
    "option",
]

M = TypeVar("M")

_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "messages": {"type": "array"},
        "stop": {"type": "array"},
        "options": {"type": "object"},
    },
    "required": ["messages"],
}


def model_contract(name: str, framework: str, *, replays: bool = False) -> Contract:
    """Return the contract of a model; its calls are `read`s.

    Args:
        name: the model's name.
        framework: the framework of the model.
        replays: it returns recorded answers itself, so no step is looked up for it.
    """
    return Contract(
        name=name,
        parameters=_PARAMETERS,
        effect="read",
        framework=framework,
        source="live" if replays else "recorded",
    )


def model_request(
    messages: Sequence[Any], *, stop: Sequence[str] | None = None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a model's call.

    Args:
        messages: as neutral data, without the fields that no model sees (message ids, usage,
            metadata); the ids of tool calls as numbers: see `CallNumbers`.
        stop: words at which the answer ends.
        options: the other parts of the question; options that are None are left out.
    """
    return {"messages": list(messages), **model_options(stop=stop, options=options)}


def model_options(
    *, stop: Sequence[str] | None = None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a model's call besides its messages: see `model_request`."""
    request: dict[str, Any] = {}
    if stop:
        request["stop"] = list(stop)
    asked = {name: option(each) for name, each in options.items() if each is not None}
    if asked:
        request["options"] = asked
    return request


def option(value: Any) -> Any:
    """Return an option as data; the class of a structured answer becomes its schema."""
    if is_model_class(value):
        return value.model_json_schema()
    if is_object(value):
        return {name: option(each) for name, each in value.items()}
    return [option(each) for each in value] if is_list(value) else value


def offered(tools: Any) -> list[str]:
    """Return the names of the tools offered to a model: objects, or schemas, OpenAI's too."""
    named = [each.get("function", each) if is_object(each) else each for each in tools or ()]
    return [str(each.get("name", "") if is_object(each) else each.name) for each in named]


# --- guarded models ------------------------------------------------------------------------------


class ModelCall(GuardedCall, abc.ABC):
    """Make one call of a model; its step's value is a list of pieces: a stream's, or one answer.

    So a streamed answer also answers a call that is not streamed, and the other way round.
    """

    kind: ClassVar[Literal["tool", "model"]] = "model"

    @abc.abstractmethod
    def answer(self, value: Any) -> Answer:
        """Return the model's answer from the value of its step, for readers of other frameworks."""

    @property
    def read(self) -> Callable[[Any], Answer]:
        """See `answer`."""
        return self.answer

    def kept(self, value: Any) -> Any:
        """Return the value to record for an answer that was not streamed."""
        return [value]


class GuardedModel(GuardedBody):
    """Guard the calls of a model; an adapter's subclass says what a call asks (`call`).

    Attributes:
        framework: the framework of the models, as in contracts.
        forms: by the name of each method that asks the model, its form of a call.
        form: takes the framework's messages apart; only `request` needs it.
        replays: the model returns recorded answers itself, so no step is looked up for it.
    """

    framework: ClassVar[str]
    forms: ClassVar[Mapping[str, BodyForm]]
    form: ClassVar[MessageForm]

    def __init__(
        self, session: Session, running: Running | None = None, *, replays: bool = False
    ) -> None:
        super().__init__(session, running)
        self.replays = replays
        self._contracts: dict[str, Contract] = {}
        self._conversations: dict[str, Conversations] = {}

    def request(
        self, contract: Contract, messages: Sequence[Any], rest: Mapping[str, Any], model: Any
    ) -> dict[str, Any]:
        """Return the arguments of a call, as `model_request` makes them of canonical messages.

        Only messages that are new since earlier calls are brought into canonical form.

        Args:
            contract: the contract of the model.
            messages: the framework's own.
            rest: the other arguments, of `model_options`.
            model: the model that is asked, whose settings may offer it tools.

        Raises:
            ToolRefused: the session's facade does not give a tool that the provider runs itself.
        """
        expose_settings(self.session, rest.get("options", {}), model, models=(*self.forms,))
        found = self._conversations.get(contract.name)
        if found is None:
            made = Conversations(contract, self.form)
            found = self._conversations.setdefault(contract.name, made)
        return found.request(messages, rest)

    def contract_of(self, name: str) -> Contract:
        """Return the contract of the model of this name."""
        found = self._contracts.get(name)
        if found is None:
            found = model_contract(name, self.framework, replays=self.replays)
            self._contracts[name] = found
        return found

    def guarded(
        self,
        model: M,
        members: Mapping[str, Any] | None = None,
        *,
        base: type | None = None,
        update: Mapping[str, Any] | None = None,
        hidden: tuple[str, ...] = (),
    ) -> M:
        """Return a guarded model of the same type, or the model itself if it is guarded.

        Args:
            model: the original, which is not changed.
            members: further attributes of the guarded model, by name.
            base: the framework's base class; methods that are its own call other methods, and are
                kept.
            update: see `swapped`.
            hidden: see `swapped`.

        Raises:
            ContractError: another session guards it.
        """
        cls: Any = type(model)
        own = guard_of(cls)
        if own is not None:
            if own.session is self.session:
                return model
            raise ContractError(f"{cls.__name__} is guarded by another session already")
        methods = {
            name: self.method(getattr(cls, name), form)
            for name, form in self.forms.items()
            if base is None or getattr(cls, name) is not getattr(base, name)
        }
        every = {GUARD: self, **methods, **(members or {})}
        return swapped(model, every, update=update, hidden=hidden)
