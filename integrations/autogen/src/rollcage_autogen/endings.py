"""The ends of a call, for an agent that would otherwise wait forever.

AutoGen's agents wait for all calls of a message, and never notice a call that ends with anything
but a value or an `Exception`, such as a cancellation or a `SystemExit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from autogen_core import CancellationToken
from rollcage import Session
from rollcage.errors import Halt, ReplayedError

__all__ = ["Answering", "cancelled", "instead_of", "linked"]


class _Told(ReplayedError):
    """A recorded error, whose text is the text that the model read originally."""

    def __str__(self) -> str:
        return self.message


def cancelled(name: str) -> Exception:
    """Return the error for the model of a call that its `CancellationToken` ended."""
    return RuntimeError(f"{name} was cancelled")


def instead_of(
    error: BaseException, session: Session | None, name: str, token: CancellationToken | None
) -> Exception:
    """Return the replacement for an error of a guarded call.

    An interrupt or an exit halts the session, if it is known: leaving it raises the error. A
    cancellation of the task that makes the call is passed on; one by the token, or of the tool's
    own, is an error.

    Raises:
        BaseException: the cancellation, or the end of a generator.
    """
    if isinstance(error, ReplayedError):
        return _Told(error.type_name, error.message)
    if isinstance(error, Exception):
        return error
    if isinstance(error, GeneratorExit):
        raise error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        by_token = token is not None and token.is_cancelled()
        if task is not None and task.cancelling() and not by_token:
            raise error
        return cancelled(name)
    kind = type(error).__name__
    if session is None:
        return RuntimeError(f"{name} raised {kind}: {error}")
    halt = Halt(f"{name} raised {kind}, which ends more than a call: {error}")
    halt.__cause__ = error
    session.halt(halt)
    return RuntimeError(f"{name} raised {kind}: {error}")


async def linked(call: Coroutine[Any, Any, Any], token: CancellationToken) -> Any:
    """Return the result of a call, unless its token ends it before."""
    value, exits = await token.link_future(asyncio.ensure_future(_without_exits(call)))
    if exits is not None:
        raise exits
    return value


async def _without_exits(call: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the result of a call, or its exit, which would end the event loop in a task."""
    try:
        return await call, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


class Answering(Coroutine[Any, Any, Any], Generator[Any, Any, Any]):
    """A running call, with any end: see `instead_of`.

    It answers its token even if it was cancelled before it began: a task throws the cancellation
    into its coroutine before any line of it has run, so no handler in it could catch it.
    """

    def __init__(
        self,
        call: Coroutine[Any, Any, Any],
        session: Session | None,
        name: str,
        token: CancellationToken | None,
    ) -> None:
        self._call = call
        self._about = session, name, token
        self._began = False

    def send(self, value: Any) -> Any:
        """Continue; see `Coroutine`."""
        self._began = True
        return self._stepped(self._call.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise in it; see `Coroutine`."""
        _, name, token = self._about
        if not self._began and token is not None and token.is_cancelled():
            self._call.close()
            raise cancelled(name)
        return self._stepped(self._call.throw, *error)

    def _stepped(self, step: Callable[..., Any], *given: Any) -> Any:
        try:
            return step(*given)
        except StopIteration:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again
            instead = instead_of(error, *self._about)
        raise instead

    def close(self) -> None:
        """Close it; see `Coroutine`."""
        self._call.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self
