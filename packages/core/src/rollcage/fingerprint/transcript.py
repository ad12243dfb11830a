"""Hash a model's request by its new messages.

An agent asks its model again and again, each time with the whole conversation. So a `Transcript`
keeps the canonical form of each message, and the state of SHA-256 behind it. The key of a request
is the digest that `key_digest` returns for the same arguments, but only the arguments behind the
messages are hashed for it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage.errors import Unencodable
from rollcage.fingerprint.identity import jcs, key_head
from rollcage.values.codec import encode
from rollcage.values.copies import own_copy
from rollcage.values.survey import CANONICAL, survey

__all__ = ["MESSAGES", "Question", "Transcript", "common_length"]

MESSAGES: Final = "messages"
"""The name of the argument; all other names of a request sort behind it."""

_OPENING: Final = b'{"messages":['


def _unsealed(secret: str) -> str:  # noqa: ARG001 - a seal
    """Refuse a message that holds a secret: its form depends on a store's key."""
    raise Unencodable(MESSAGES, "a secret")


class Transcript:
    """Hold the canonical messages of a model's requests. Messages are added, and never changed.

    Args:
        name: the name of the model.
        version: the version of the model's contract.

    Attributes:
        values: the messages, copied. All requests share them: nobody may change one.
        messages: the same in canonical form.
        digests: the SHA-256 of each message's JCS.
        ends: how many bytes of JCS the messages take, up to each.
    """

    __slots__ = ("_head", "_states", "digests", "ends", "messages", "values")

    def __init__(self, name: str, version: str) -> None:
        self._head = key_head("model", name, version)
        self._states = [sha256(self._head + _OPENING)]  # before the first message, behind each
        self.values: list[Any] = []
        self.messages: list[Any] = []
        self.digests: list[bytes] = []
        self.ends: list[int] = []

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def size(self) -> int:
        """Return how many bytes the messages take."""
        return self.ends[-1] if self.ends else 0

    def first(self, count: int) -> Transcript:
        """Return a transcript that goes on behind the first so many messages."""
        found = copy.copy(self)
        found._states = self._states[: count + 1]  # noqa: SLF001 - its own kind
        found.values, found.messages = self.values[:count], self.messages[:count]
        found.digests, found.ends = self.digests[:count], self.ends[:count]
        return found

    def add(self, message: Any) -> None:
        """Add a copy of a message, in canonical form.

        Raises:
            Unencodable: it has no canonical form, or one that depends on a store's key.
            rfc8785.CanonicalizationError: JCS can't hold it.
            RecursionError: it is nested too deep.
        """
        value = own_copy(message)
        canonical, data = _canonical(value)
        state = self._states[-1].copy()
        state.update(b"," + data if self.messages else data)
        self.digests.append(sha256(data).digest())
        self.ends.append(self.size + len(data))
        self.values.append(value)
        self.messages.append(canonical)
        self._states.append(state)

    def holds(self, place: int, message: Any) -> bool:
        """Tell whether a message has the canonical form of the one at a place; raises as `add`."""
        return sha256(_canonical(message)[1]).digest() == self.digests[place]

    def key(self, count: int, rest: bytes) -> bytes:
        """Return the key of a request of the first so many messages.

        Args:
            count: how many messages.
            rest: the JCS of all other arguments.
        """
        digest = self._states[count].copy()
        digest.update(b"]}]" if rest == b"{}" else b"],%b]" % rest[1:])
        return digest.digest()

    def is_of(self, name: str, version: str) -> bool:
        """Tell whether requests of a model can be made of it."""
        return self._head == key_head("model", name, version)


def _canonical(message: Any) -> tuple[Any, bytes]:
    """Return a message as a request has it in its canonical arguments, and its JCS.

    Raises:
        Unencodable: it has no canonical form, or one that depends on a store's key.
        rfc8785.CanonicalizationError: JCS can't hold it.
        RecursionError: it is nested too deep.
    """
    around = [[message]]  # at its depth in a request: some depth is too deep
    if survey(around) == CANONICAL:
        try:
            return message, orjson.dumps(around, option=orjson.OPT_SORT_KEYS)[2:-2]
        except orjson.JSONEncodeError:  # a lone surrogate, or nested too deep
            pass
    encoded = encode(around[0], _unsealed, path=MESSAGES)
    return encoded[0], jcs([encoded])[2:-2]


def _first_of(items: list[Any], count: int) -> list[Any]:
    """Return the first so many items of a list: the list itself if there are no more."""
    return items if len(items) == count else items[:count]


def common_length(one: list[Any], other: list[Any]) -> int:
    """Return how many items two lists have in common, from the first on.

    It compares slices, and halves what differs: each comparison is a loop in C.
    """
    most = min(len(one), len(other))
    if not most or one[0] != other[0]:
        return 0
    if _first_of(one, most) == _first_of(other, most):
        return most
    low = 1  # so many are alike; `most` are not
    while most - low > 1:
        middle = (low + most) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            most = middle
    return low


class Question:
    """Hold a request: the first messages of a transcript, and the other arguments.

    Its bytes are the JCS of all arguments; they are put together when they are asked for.

    Args:
        transcript: has the messages, and maybe more.
        count: how many of them are asked with.
        rest: the other arguments, in canonical form.

    Attributes:
        transcript: the same.
        messages: the messages in canonical form, in a list of this request's own.
    """

    __slots__ = ("_rest", "messages", "transcript")

    def __init__(self, transcript: Transcript, count: int, rest: Mapping[str, Any]) -> None:
        self.transcript, self._rest = transcript, rest
        self.messages = transcript.messages[:count]

    def key(self) -> bytes:
        """Return the content identity of the call: see `key_digest`."""
        return self.transcript.key(len(self.messages), jcs(self._rest))

    def __bytes__(self) -> bytes:
        return jcs({MESSAGES: self.messages, **self._rest})
