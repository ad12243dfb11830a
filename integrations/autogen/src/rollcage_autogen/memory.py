"""A saved state of an agent or a team, as the memory that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollcage import Session
from rollcage_adapter import is_list, is_object

__all__ = ["follow_state"]


def follow_state(session: Session, state: Mapping[str, Any]) -> None:
    """Tell a session of the state that an agent or a team is about to load.

    ::

        follow_state(session, state)
        await team.load_state(state)

    What the state shows as answered is seen (see `Session.seen`): nobody asks for it again. A
    guarded model tells of its own agent's history by itself, with the first question; of a team
    whose agents use tools in turn, all of them have to be known before the first one goes on.

    Args:
        session: guards the agents; it is entered.
        state: what `save_state` gave.
    """
    session.seen({name: [*_answered(each)] for name, each in _agents(state, "")})


def _agents(state: object, name: str) -> Iterator[tuple[str, object]]:
    """The states of agents in a state, by their names; an agent of its own has none."""
    if not is_object(state):
        return
    agents: Any = state.get("agent_states")
    if not is_object(agents):
        yield name, state
        return
    for each, inner in agents.items():
        yield from _agents(inner, str(each))


def _answered(state: object) -> Iterator[str]:
    """The ids of the calls whose results stand anywhere in an agent's state."""
    if is_list(state):
        for each in state:
            yield from _answered(each)
    elif is_object(state):
        results: Any = state.get("content")
        if state.get("type") == "FunctionExecutionResultMessage" and is_list(results):
            for each in results:
                if is_object(each):
                    yield str(each.get("call_id") or "")
            return
        for each in state.values():
            yield from _answered(each)
