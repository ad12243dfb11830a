"""Remember the messages that a model was asked with, and make requests of the new ones.

An agent asks with its whole conversation each time. The canonical form of a message is kept with a
frozen copy of the parts that it was made of, and is used for as long as the message equals that
copy. So a message that was changed in place is noticed. A copy of a message is as good as the
message: messages are compared, and none is held.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

import rfc8785
from rollcage import Contract
from rollcage.errors import Unencodable
from rollcage.session.adapters import ModelRequest, Transcript, common_length

from rollcage_adapter.shapes import is_list, is_object

__all__ = ["CallNumbers", "Conversations", "MessageForm"]

MOST: Final = 16
"""How many conversations a guarded model remembers: as many agents may ask it at once."""

MOST_BYTES: Final = 128 * 2**20
"""How many canonical bytes they may have; the latest one is remembered however long it is."""

_CALL_IDS: Final = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})


class CallNumbers:
    """Number the ids of tool calls in order of appearance: the ids differ from run to run.

    Args:
        before: ids that have appeared already, in order.
    """

    def __init__(self, before: Sequence[str] = ()) -> None:
        self._numbers = {call_id: number for number, call_id in enumerate(before)}

    def __len__(self) -> int:
        return len(self._numbers)

    def first(self, count: int) -> CallNumbers:
        """Return the numbers as they were when so many ids had appeared."""
        return CallNumbers(list(islice(self._numbers, count)))

    def of(self, call_id: str | None) -> int:
        """Return the number of a call."""
        return self._numbers.setdefault(call_id or "", len(self._numbers))

    def issued(self, name: Any, arguments: Any, call_id: str | None) -> dict[str, Any]:
        """Return a call that a message asks for, as a part of a request."""
        return {"name": name, "args": arguments, "call": self.of(call_id)}

    def within(self, content: Any) -> Any:
        """Return content with numbers for ids: some providers repeat them in their blocks."""
        if is_object(content):
            return {
                name: self._numbers.get(each, each)
                if name in _CALL_IDS and isinstance(each, str)
                else self.within(each)
                for name, each in content.items()
            }
        return [self.within(each) for each in content] if is_list(content) else content


class MessageForm(abc.ABC):
    """Take a framework's messages apart, and bring them into canonical form.

    Attributes:
        plain: classes of parts whose fields, in `__dict__`, are all that there is to them.
    """

    plain: ClassVar[frozenset[type]] = frozenset()

    @abc.abstractmethod
    def parts(self, messages: Sequence[Any]) -> list[Any]:
        """Return all parts of each message that its canonical form is made of.

        Each request asks for the parts of the whole conversation: a loop in C pays. Parts are
        lists, tuples and dicts of texts, numbers and `plain` objects. A message with any other part
        (an image, say) is brought into its form each time.
        """

    @abc.abstractmethod
    def canonical(self, message: Any, calls: CallNumbers) -> Any:
        """Return a message as a part of a request: see `model_request`."""


class Conversations:
    """Remember the conversations with one model, for any number of threads.

    Args:
        contract: the contract of the model.
        form: takes the messages apart.
    """

    def __init__(self, contract: Contract, form: MessageForm) -> None:
        self._contract = contract
        self._form = form
        self._known: list[_Known] = []  # the latest at the end
        self._lock = threading.Lock()

    def request(self, messages: Sequence[Any], rest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call that asks with these messages.

        Args:
            messages: the framework's own.
            rest: the other arguments: see `model_request`.
        """
        form, count = self._form, len(messages)
        try:
            parts = form.parts(messages)
            with self._lock:
                known = self._go_on(messages, parts)
        except (Unencodable, rfc8785.CanonicalizationError, RecursionError):
            # A message without a form of its own: the session binds the whole request.
            calls = CallNumbers()
            return {"messages": [form.canonical(each, calls) for each in messages], **rest}
        transcript = known.transcript

        def has_changed() -> bool:
            if len(messages) != count:
                return True
            parts = form.parts(messages)
            with self._lock:
                return known.common(form, messages, parts) < count

        arguments = {"messages": transcript.values[:count], **rest}
        return ModelRequest(arguments, transcript, has_changed)

    def _go_on(self, messages: Sequence[Any], parts: list[Any]) -> _Known:
        """Take in the new ones of these messages, and return their conversation."""
        best, common = None, 0
        for known in reversed(self._known):
            found = known.common(self._form, messages, parts)
            if best is None or found > common:
                best, common = known, found
            if common and common in (len(best.frozen), len(messages)):  # it goes on from there
                break
        if best is None or not common:
            best = _Known(Transcript(self._contract.name, self._contract.version))
        elif common < len(messages) and common < len(best.frozen):
            best = best.first(common)
        else:
            self._known.remove(best)
        self._known.append(best)
        self._forget()
        for message, part in zip(messages[common:], parts[common:], strict=True):
            best.add(self._form, message, part)
        return best

    def _forget(self) -> None:
        size = sum(each.transcript.size for each in self._known)
        while len(self._known) > 1 and (len(self._known) > MOST or size > MOST_BYTES):
            size -= self._known.pop(0).transcript.size


class _Known:
    """Hold the canonical bytes and digests of a conversation.

    Attributes:
        transcript: its messages in canonical form.
        frozen: of each message, a copy of its parts.
        opaque: the places of messages whose parts have no copy: their form is made each time.
        numbers: how many ids of calls had appeared before each message.
        calls: the numbers of these ids.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.frozen: list[Any] = []
        self.opaque: list[int] = []
        self.numbers: list[int] = []
        self.calls = CallNumbers()

    def first(self, count: int) -> _Known:
        """Return the conversation up to its first so many messages, to continue otherwise."""
        found = _Known(self.transcript.first(count))
        found.frozen, found.numbers = self.frozen[:count], self.numbers[:count]
        found.opaque = [place for place in self.opaque if place < count]
        found.calls = self.calls.first(self.numbers[count])
        return found

    def add(self, form: MessageForm, message: Any, parts: Any) -> None:
        """Take in the next message; after an error, nothing has changed."""
        numbers = len(self.calls)
        try:
            self.transcript.add(form.canonical(message, self.calls))
        except BaseException:
            self.calls = self.calls.first(numbers)
            raise
        try:
            self.frozen.append(_frozen(parts, form.plain))
        except _OpaqueError:
            self.opaque.append(len(self.frozen))
            self.frozen.append(_OPAQUE)
        self.numbers.append(numbers)

    def common(self, form: MessageForm, messages: Sequence[Any], parts: list[Any]) -> int:
        """Count the messages that are the same, from the first on.

        The copies stand on the left of each comparison: their `__eq__` is asked first.
        """
        at, most = 0, min(len(parts), len(self.frozen))
        for place in self.opaque:
            if place >= most:
                break
            at += common_length(self.frozen[at:place], parts[at:place])
            if at < place:
                return at
            calls = self.calls.first(self.numbers[place])
            if not self.transcript.holds(place, form.canonical(messages[place], calls)):
                return at
            at += 1
        if not at:
            return common_length(self.frozen, parts)
        return at + common_length(self.frozen[at:most], parts[at:most])


# --- copies of parts ------------------------------------------------------------------------------


class _OpaqueError(Exception):
    """Say that something in a message can change in unknown ways."""


class _Opaque:  # noqa: PLW1641 - compared, and never looked up
    """Stand for the parts of a message that have no copy, and equal nothing."""

    def __eq__(self, other: object) -> bool:
        return False


class _Exactly:  # noqa: PLW1641 - the same
    """Stand for a number in a copy, and equal numbers of the same type only."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        value = self._value
        if other is value:  # most have not been replaced
            return True
        if type(other) is not type(value):
            return False
        return repr(other) == repr(value) if type(value) is float else other == value


class _Fields:  # noqa: PLW1641 - the same
    """Stand for an object in a copy, and equal objects of its class with the same fields."""

    __slots__ = ("_fields", "_kind")

    def __init__(self, kind: type, fields: dict[str, Any]) -> None:
        self._kind, self._fields = kind, fields

    def __eq__(self, other: object) -> bool:
        return type(other) is self._kind and self._fields == other.__dict__


_OPAQUE: Final = _Opaque()
_NUMBERS: Final = frozenset({bool, float, int})


def _frozen(parts: Any, plain: frozenset[type]) -> Any:
    """Return a copy that equals these parts as long as nothing in them has changed.

    Raises:
        _OpaqueError: something in them can change in unknown ways.
    """
    kind: type[Any] = type(parts)
    if kind is str or parts is None or isinstance(parts, type):
        return parts
    if kind in _NUMBERS:
        return _Exactly(parts)
    if kind is dict:
        if not all(type(name) is str for name in parts):
            raise _OpaqueError
        return {name: _frozen(each, plain) for name, each in parts.items()}
    if kind is list:
        return [_frozen(each, plain) for each in parts]
    if kind is tuple:
        return tuple(_frozen(each, plain) for each in parts)
    if kind in plain:
        return _Fields(kind, _frozen(parts.__dict__, plain))
    raise _OpaqueError
