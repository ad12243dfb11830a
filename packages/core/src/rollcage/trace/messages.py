"""Write each message of a model's requests once in a log.

An agent asks its model again and again, each time with the whole conversation. So the line of a
model's step holds only new messages, and a reference to an earlier step for the rest::

    "messages": [{"$rollcage": "messages", "step": 3, "first": 0, "count": 5}, {"role": "tool", …}]

stands for the first five messages of step 3, then the new one. A list has at most one reference, to
a step before it, so no list is longer than all messages of the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from rollcage.fingerprint.transcript import common_length
from rollcage.values.codec import TAG

if TYPE_CHECKING:
    from rollcage.fingerprint.transcript import Question

__all__ = ["MessagesRead", "MessagesWritten"]

Event = dict[str, Any]

_TAG: Final = "messages"
_FIELDS: Final = {TAG, "step", "first", "count"}
_REMEMBERED: Final = 16  # requests that a next one may go on from: as many agents at once
_WORTH: Final = 100  # bytes from which on messages are referred to
_MOST: Final = 20_000_000  # messages that the references of one trace stand for


class _Request(NamedTuple):
    """Hold the parts of a written request with which later requests are compared.

    The lists may be a transcript's, which has more messages by the time they are compared.
    """

    digests: list[bytes]  # of its messages
    ends: list[int]  # how many bytes they take, up to each
    length: int  # how many messages


class _Common(NamedTuple):
    """Describe messages that two requests have in common."""

    at: int  # where they are in the new one
    step: int
    first: int
    length: int


class MessagesWritten:
    """Replace messages in the log by references. One instance for each written run."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, _Request] = OrderedDict()  # by step, the latest at the end
        self._next: tuple[int, _Request, _Common | None] | None = None
        self._left = _MOST

    def shortened(self, event: Event, asked: Question | None = None) -> Event:
        """Return an event in the form of the next line; then call `written`.

        Args:
            event: the line.
            asked: the request, if its messages are known from earlier ones. It says nothing of a
                line that got other messages, because these held a secret.
        """
        messages = _messages_of(event)
        if messages is None:
            return event
        if asked is not None and messages is asked.messages:
            known = asked.transcript
            request = _Request(known.digests, known.ends, len(messages))
        else:
            request = _request(messages)
        found = self._longest(request)
        self._next = event["step"], request, found
        if found is None:
            return event
        stand_in = {TAG: _TAG, "step": found.step, "first": found.first, "count": found.length}
        own = [*messages[: found.at], stand_in, *messages[found.at + found.length :]]
        return {**event, "args": {**event["args"], "messages": own}}

    def written(self) -> None:
        """Note that the line is in the log: later lines may refer to it."""
        if self._next is None:
            return
        (step, request, found), self._next = self._next, None
        if found is not None:
            self._left -= found.length
            if found.length == self._requests[found.step].length:
                del self._requests[found.step]  # this one goes on from it
        self._requests[step] = request
        if len(self._requests) > _REMEMBERED:
            self._requests.popitem(last=False)

    def _longest(self, request: _Request) -> _Common | None:
        """Return the longest run of messages, from the first or second on, that a step holds.

        A run that begins both requests is enough if it is half of the new one: most go on.
        """
        best = self._common(request, starts_alike=True)
        if best is None or not _is_enough(best, request):
            best = self._common(request)
        if best is None or best.length > self._left:
            return None
        size = request.ends[best.at + best.length - 1] - (request.ends[0] if best.at else 0)
        return best if size >= _WORTH else None

    def _common(self, request: _Request, *, starts_alike: bool = False) -> _Common | None:
        """Return the longest run of messages that a step holds; the later step of equal ones.

        Args:
            request: the new request.
            starts_alike: whether only runs count that begin both requests. They are found without a
                look at each message of each step.
        """
        best: _Common | None = None
        for step, known in reversed(self._requests.items()):
            for at, first in _beginnings(request, known, starts_alike=starts_alike):
                length = _alike(request, at, known, first)
                if best is None or length > best.length:
                    best = _Common(at, step, first, length)
            if starts_alike and best is not None and _is_enough(best, request):
                break
        return best


def _beginnings(
    request: _Request, known: _Request, *, starts_alike: bool
) -> Iterator[tuple[int, int]]:
    """Yield where common messages may begin, in a new request and in a known one.

    They begin at the first message of both; or at the first or the second of the new one (the first
    may tell the time), and anywhere in the known one.
    """
    new = request.digests
    if starts_alike:
        if request.length and known.length and new[0] == known.digests[0]:
            yield 0, 0
        return
    held = known.digests[: known.length]
    for at in range(min(2, request.length)):
        if new[at] in held:
            yield at, held.index(new[at])


def _alike(request: _Request, at: int, known: _Request, first: int) -> int:
    """Return how many messages two requests have in common, from these places on."""
    if request.digests is known.digests and at == first:  # one conversation: nothing to compare
        return min(request.length, known.length) - at
    return common_length(request.digests[at : request.length], known.digests[first : known.length])


def _is_enough(found: _Common, request: _Request) -> bool:
    """Tell whether common messages are at least half of a request, so that no others are sought."""
    return 2 * found.length >= request.length


class MessagesRead:
    """Replace references by their messages. One instance for each log that is read."""

    def __init__(self) -> None:
        self._held: dict[int, list[Any]] = {}
        self._left = _MOST

    def restore(self, event: Event) -> None:
        """Complete the messages of an event, in place.

        Raises:
            ValueError: the referenced messages are not there.
        """
        messages = _messages_of(event)
        if messages is None:
            return
        places = [at for at, each in enumerate(messages) if _is_reference(each)]
        if len(places) > 1:
            raise ValueError("its messages have more than one reference")
        if places:
            at = places[0]
            messages = event["args"]["messages"] = [
                *messages[:at],
                *self._meant(messages[at]),
                *messages[at + 1 :],
            ]
        step = event["step"]
        if type(step) is int:
            self._held[step] = messages

    def _meant(self, reference: dict[str, Any]) -> list[Any]:
        if reference.keys() != _FIELDS:
            raise ValueError("a reference to messages has other fields than step, first and count")
        step, first, count = (reference[name] for name in ("step", "first", "count"))
        if not all(type(each) is int for each in (step, first, count)):
            raise ValueError("a reference to messages is not in integers")
        held = self._held.get(step)
        if held is None:
            raise ValueError(f"it refers to the messages of step {step}, which has none before it")
        if first < 0 or count < 1 or first + count > len(held):
            raise ValueError(
                f"it refers to messages {first} to {first + count} of step {step}, which has "
                f"{len(held)}"
            )
        self._left -= count
        if self._left < 0:
            raise ValueError(f"the references stand for more than {_MOST:,} messages")
        return held[first : first + count]


def _messages_of(event: Event) -> list[Any] | None:
    """Return the messages of an event of a model's step; None for other events."""
    if "model" not in (event.get("kind"), event.get("effect")) or "step" not in event:
        return None
    args = event.get("args")
    messages: Any = args.get("messages") if type(args) is dict else None
    return messages if type(messages) is list else None


def _is_reference(message: Any) -> bool:
    return type(message) is dict and message.get(TAG) == _TAG


def _request(messages: list[Any]) -> _Request:
    digests: list[bytes] = []
    ends: list[int] = []
    size = 0
    for each in messages:
        data = orjson.dumps(each, option=orjson.OPT_SORT_KEYS)  # mostly its JCS
        size += len(data)
        digests.append(sha256(data).digest())
        ends.append(size)
    return _Request(digests, ends, len(messages))
