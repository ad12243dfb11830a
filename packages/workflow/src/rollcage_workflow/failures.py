"""What a step's failure does to the execution, and whether the step is tried again."""

from __future__ import annotations

from typing import Final

from rollcage_workflow.plan import OnFailure, Retry

__all__ = ["is_worth", "notes_of", "on_failure", "say", "type_name"]


_ON_FAILURE: Final = "on_failure: "


def notes_of(error: BaseException) -> list[str]:
    """What was noted of an error."""
    return list(getattr(error, "__notes__", ()))


def say(error: BaseException, action: OnFailure | None) -> None:
    """Note what an error does, unless something closer to it has noted that.

    It is a note, so that it is on record with the error: a replay finds it there.
    """
    if action is not None and on_failure(error) is None:
        error.add_note(f"{_ON_FAILURE}{action}")


def on_failure(error: BaseException) -> str | None:
    """What the step, or the plan, in which an error came up says of that; None: nothing."""
    action = (note for note in notes_of(error) if note.startswith(_ON_FAILURE))
    return next((note.removeprefix(_ON_FAILURE) for note in action), None)


def type_name(error: BaseException) -> str:
    """What an error is called in `retry.on` and in kept results."""
    named = getattr(error, "type_name", None)
    return str(named) if named else type(error).__name__


def is_worth(retry: Retry, error: Exception) -> bool:
    """Whether an error is worth another attempt: one that says that the call is wrong is not."""
    if type_name(error) in ("ArgumentsInvalid", "Blocked", "ExpressionFailed", "ContractError"):
        return False
    names = {each.__name__ for each in type(error).__mro__} | {type_name(error)}
    return not retry.on or bool(names & set(retry.on))
