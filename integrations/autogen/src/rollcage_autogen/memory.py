"""A saved state of an agent or a team, as a memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollcage import Session
from rollcage_adapter import is_list, is_object

__all__ = ["follow_state"]


def follow_state(session: Session, state: Mapping[str, Any]) -> None:
    """Tell a session the state that an agent or a team is about to load.

    ::

        follow_state(session, state)
        await team.load_state(state)

    Calls that the state shows as answered are seen (see `Session.seen`): they are not repeated. A
    guarded model reports its own agent's history with the first request; in a team
    whose agents use tools in turn, all histories must be known before the first agent continues.

    Args:
        session: the session that guards the agents; it is entered.
        state: the result of `save_state`.
    """
    session.seen({name: [*_answered(each)] for name, each in _agents(state, "")})


def _agents(state: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield the states of agents in a state, by their names; an agent's own state has none."""
    if not is_object(state):
        return
    agents: Any = state.get("agent_states")
    if not is_object(agents):
        yield name, state
        return
    for each, inner in agents.items():
        yield from _agents(inner, str(each))


def _answered(state: object) -> Iterator[str]:
    """Yield the ids of the calls whose results stand anywhere in an agent's state."""
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
