"""The effect of a step's failure on the execution, and retries."""

from __future__ import annotations

from typing import Final

from rollcage_workflow.plan import OnFailure, Retry

__all__ = ["is_worth", "notes_of", "on_failure", "say", "settle", "type_name"]


_ON_FAILURE: Final = "on_failure: "


def notes_of(error: BaseException) -> list[str]:
    """Return the notes on an error."""
    return list(getattr(error, "__notes__", ()))


def say(error: BaseException, action: OnFailure | None) -> None:
    """Note the effect of an error, unless an inner step has noted it.

    It is a note, so that it is recorded with the error: a replay finds it there.
    """
    if action is not None and on_failure(error) is None:
        error.add_note(f"{_ON_FAILURE}{action}")


def settle(error: BaseException) -> None:
    """Remove the note on the effect of an error: it has taken effect."""
    notes = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(_ON_FAILURE)]


def on_failure(error: BaseException) -> str | None:
    """Return the setting of the failed step, or of its plan; None without one."""
    action = (note for note in notes_of(error) if note.startswith(_ON_FAILURE))
    return next((note.removeprefix(_ON_FAILURE) for note in action), None)


def type_name(error: BaseException) -> str:
    """Return an error's name in `retry.on` and in kept results."""
    named = getattr(error, "type_name", None)
    return str(named) if named else type(error).__name__


def is_worth(retry: Retry, error: Exception) -> bool:
    """Return whether an error is worth another attempt: an error about the call itself is not."""
    if type_name(error) in ("ArgumentsInvalid", "Blocked", "ExpressionFailed", "ContractError"):
        return False
    names = {each.__name__ for each in type(error).__mro__} | {type_name(error)}
    return not retry.on or bool(names & set(retry.on))
