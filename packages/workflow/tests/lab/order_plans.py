"""Plans whose executions workers are asked for, as tests write them."""

import asyncio
from typing import Any

from parts import requests_in
from rollcage import compensate, open_store, tool
from rollcage_workflow.orders import Commands
from workers import Crew
from worlds import World

__all__ = ["APPROVED", "THREE", "asked", "put", "steering", "steps"]


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "inputs": {"n": {"default": 1}}, "steps": given}


def put(what: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after), **more}


THREE = steps(a=put("a"), b=put("b", "a"), c=put("c", "b"))


def steering(world: World, do: Any) -> dict[str, Any]:
    """A plan whose second step does something to its own execution, from within its body."""

    @tool(effect="write", name="steer", undo=lambda: [compensate(world.tools[0], token="#")])
    async def steer() -> None:
        await asyncio.to_thread(do, Commands(open_store(world.store)))

    world.tools.append(steer)
    return steps(a=put("a"), steer={"call": "steer", "after": ["a"]}, c=put("c", "steer"))


APPROVED = steps(
    ask={"wait": {"approval": "='ship ' + string(inputs.n) + '?'"}},
    ship=put("ship", "ask"),
)


async def asked(crew: Crew) -> str:
    crew.start(inputs={"n": 3})
    await crew.work()
    assert crew.job().status == "waiting"
    (name,) = requests_in(crew.store)
    assert f"rollcage approve {name}" in crew.job().waits
    return name
