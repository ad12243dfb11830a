"""Keep declared secrets out of every line, even if a result, an error or a later call quotes them.

A secret is known from the moment of its sealing: a `SecretStr`, secret bytes, or a parameter
declared with `secret=`. From then on, its HMAC replaces it everywhere: in arguments, so in their
keys; in outcomes, which then can't be replayed; and in every other line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from rollcage.calls.stage import Stage
from rollcage.contract.compensation import keyed_digest
from rollcage.gate.sealing import Sealing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rollcage.session.session import Session
    from rollcage.trace.run import Event
    from rollcage.values.hiding import Hiding, Seal

__all__ = ["Secrets", "concealing"]

_OURS: Final = frozenset({
    "after", "attempt", "branch", "effect", "event", "fingerprint", "format", "id", "key", "keyed",
    "kind", "left", "plan", "policy", "replayed", "restarted", "run", "sha256", "status", "step",
    "steps", "time",
})  # fmt: skip
"""Fields without any content of the program, or with content that an undo has to find unchanged."""


def concealing(around: Hiding, brought: Iterable[Stage]) -> tuple[Secrets, ...]:
    """Return what conceals the secrets of an outer session in a run of its own inside of it.

    Args:
        around: the seal of the outer session.
        brought: the stages of the inner session; one that conceals secrets is enough.
    """
    if not isinstance(around, Sealing) or any(isinstance(each, Secrets) for each in brought):
        return ()
    return (Secrets(type(around)),)


class Secrets(Stage):
    """Conceal secrets in every line.

    Args:
        sealing: makes the object that finds and replaces secrets, from a seal.
    """

    def __init__(self, sealing: Callable[[Seal], Sealing] = Sealing) -> None:
        self._sealing = sealing
        self._seal: Sealing | None = None

    def opening(self, session: Session) -> None:
        """Look for secrets from the attempt's own line on."""
        self._seal = self._made(session)

    def opened(self, session: Session) -> None:
        """Let the session's seal remember the secrets that it seals."""
        if self._seal is None:  # it was added to a session that was entered
            self._seal = self._made(session)
        session.seal = session.attempt.seal = self._seal

    def _made(self, session: Session) -> Sealing:
        """Return the seal; inside of another session, it knows the secrets of that one."""
        seal = self._sealing(session.seal)
        around = None if session.around is None else session.around.attempt.seal
        if isinstance(around, Sealing):
            seal.share(around)
        return seal

    def conceal(self, event: Event) -> Event:
        """Replace the secrets that a line quotes."""
        seal = self._seal
        if seal is None or seal.idle:
            return event
        line = orjson.loads(orjson.dumps(event))
        hidden = {name: self._hidden(name, value) for name, value in line.items()}
        before = hidden.get("before")
        if before is not None and before != line["before"]:  # it holds a secret known only now
            late = {n: each for n, each in line["before"].items() if before.get(n) != each}
            keyed = {n: keyed_digest(each, before.get(n), seal) for n, each in late.items()}
            hidden["keyed"] = {**keyed, **line.get("keyed", {})}
        return event if hidden == line else hidden

    def _hidden(self, name: str, value: Any) -> Any:
        if name in _OURS or self._seal is None:
            return value
        if name in ("outcome", "verdict"):
            if value is None:
                return value
            return {
                each: part
                if each in ("status", "decision", "typed", "unclear")
                else self._part(part)
                for each, part in value.items()
            }
        return self._part(value)

    def _part(self, value: Any) -> Any:
        assert self._seal is not None
        return self._seal.hide(value).value
