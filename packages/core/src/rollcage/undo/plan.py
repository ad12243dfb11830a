"""Handle the parts of an undo: the states that a tool observes, and the calls that it plans.

Large values are kept beside the log, and references stand in their places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from rollcage.contract.compensation import plan_from
from rollcage.errors import StoreError
from rollcage.replay.call import Place, at
from rollcage.replay.outcome import LARGE
from rollcage.trace.threads import in_thread
from rollcage.values.codec import TAG
from rollcage.values.decoding import decode

if TYPE_CHECKING:
    from rollcage.contract.compensation import Tool
    from rollcage.contract.contract import Contract
    from rollcage.trace.store import Store

__all__ = [
    "consult", "fetched", "has_large", "keep_large", "looking", "plain", "plan_of", "revived",
]  # fmt: skip

_BLOB: Final = "blob"


def consult(
    function: Callable[..., Any],
    is_async: bool,  # noqa: FBT001 - one flow
    *args: Any,
    **words: Any,
) -> Callable[[], Any]:
    """Return a call of a tool's own function, sync or async as the session is.

    It stands under a function of this module in every thread, so that no stage takes it for a body.
    """

    def ask() -> Any:
        return function(*args, **words)

    async def aask() -> Any:
        return await function(*args, **words)

    if not is_async:
        return ask
    return aask if inspect.iscoroutinefunction(function) else lambda: in_thread(ask)


def looking(
    place: Place, contract: Contract, what: Literal["observe", "probe", "undo"]
) -> Callable[..., Any]:
    """Return a function of a tool that looks at the world as it is, and never at the record.

    Its own calls of guarded reads are gated as calls at `place`; they are no steps. See
    `rollcage.calls.looks`.
    """
    function: Callable[..., Any] = getattr(contract, what)
    where = Place(
        place.attempt, place.session, place.branch, agent=place.agent,
        looks=f"{what} of {contract.name}",
    )  # fmt: skip

    def look(*args: Any, **words: Any) -> Any:
        with at(where):
            return function(*args, **words)

    async def alook(*args: Any, **words: Any) -> Any:
        with at(where):
            return await function(*args, **words)

    return alook if inspect.iscoroutinefunction(function) else look


def plain(states: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return encoded states as values, for a tool's own functions."""
    return {resource: decode(state) for resource, state in (states or {}).items()}


def plan_of(
    contract: Contract, place: Place, known: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Return the plan that a tool makes from the known facts; None if the call can't be undone.

    Args:
        contract: the declaration of the tool.
        place: where the call to undo was made; its session's gate decides on the plan.
        known: the facts, by the words for a signature to name.

    Raises:
        SessionError: the gate denies a tool that the plan would call.
        ContractError: the result is no plan.
    """
    attempt, gate = place.attempt, place.session.gate
    made = looking(place, contract, "undo")(**{word: known[word] for word in contract.undo_words})
    allow = (lambda tool: gate.check_undo(tool.contract)) if gate.undo_screens else _allow
    plan = plan_from(made, attempt.tools, attempt.seal, allow)
    return None if plan is None else [each.as_data() for each in plan]


def _allow(tool: Tool) -> None:
    """Let any tool be called."""


def has_large(marks: Mapping[str, Any]) -> bool:
    """Tell whether a state before, or an argument of a plan, is too large for a line."""
    values = [*(marks.get("before") or {}).values()]
    values += [v for call in marks.get("plan") or () for v in call["args"].values()]
    return any(_is_large(each) for each in values)


def _is_large(value: Any) -> bool:
    if isinstance(value, str) and len(value) * 4 < LARGE:
        return False
    return len(orjson.dumps(value)) >= LARGE


def keep_large(store: Store, marks: Mapping[str, Any]) -> dict[str, Any]:
    """Move the large values of marks into the store, and return the marks."""

    def kept(value: Any) -> Any:
        data = orjson.dumps(value)
        if len(data) < LARGE:
            return value
        digest = sha256(data).hexdigest()
        store.swap("blobs", digest, None, data)
        return {TAG: _BLOB, "value": None, "sha256": digest, "size": len(data)}

    found = dict(marks)
    if found.get("before"):
        found["before"] = {name: kept(value) for name, value in found["before"].items()}
    if found.get("plan"):
        found["plan"] = [
            {**call, "args": {name: kept(value) for name, value in call["args"].items()}}
            for call in found["plan"]
        ]
    return found


def revived(store: Store, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return states or arguments with their large values fetched from the store.

    Raises:
        StoreError: a value is missing or damaged.
    """
    return {
        name: orjson.loads(fetched(store, value["sha256"]))
        if isinstance(value, dict) and value.get(TAG) == _BLOB and "sha256" in value
        else value
        for name, value in values.items()
    }


def fetched(store: Store, digest: str) -> bytes:
    """Return the bytes kept under a digest.

    Raises:
        StoreError: the bytes are missing or damaged.
    """
    data = store.get("blobs", digest)
    if data is None or sha256(data).hexdigest() != digest:
        raise StoreError(f"the large value {digest}, which an undo needs, is gone or damaged")
    return data
