"""Plans as tests write them."""

from typing import Any

from rollcage import Store, open_store
from rollcage.trace.store import every_key
from rollcage_workflow import execution
from worlds import World

__all__ = ["execution_of", "put", "requests_in", "steps"]


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "steps": given}


def put(what: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, **more}


def execution_of(world: World, name: str = "job") -> Any:
    return execution(open_store(world.store), name)


def requests_in(store: Store) -> list[str]:
    """The ids of what people were asked, and is not on record yet."""
    return [*every_key(store, "requests")]
