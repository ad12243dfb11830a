"""The adapter's uses of LangChain's private names, all of them, and why there is no public way.

Checked with langchain-core 1.7.2, langgraph 1.2.22 and langchain-mcp-adapters 0.3.2. No other file
of the adapter may use such a name: `tests/test_private_names.py`, at the root of the repository,
fails otherwise.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from langchain_core.tools import BaseTool, ToolException
from rollcage_adapter import is_object

__all__ = [
    "INTERRUPT",
    "NATIVE_STREAMS",
    "UNFINISHED",
    "VALIDATES",
    "GraphTask",
    "attempt_in",
    "checkpointer_in",
    "mcp_error",
    "starting_tool",
    "task_in",
    "tasks_beside",
]

VALIDATES: Final = "_to_args_and_kwargs"
"""The method of `BaseTool` that validates a call's arguments by the tool's schema.

Arguments that it refuses reach neither the tool's body nor its callbacks, and
`handle_validation_error` is the user's own.
"""

NATIVE_STREAMS: Final = ("_stream_chat_model_events", "_astream_chat_model_events")
"""The methods by which a chat model streams events of its own.

They bypass `_stream`; without them, LangChain makes the events from its chunks. There is no setting
for it.
"""

INTERRUPT: Final = "__interrupt__"
UNFINISHED: Final = frozenset({"__error__", INTERRUPT, "__resume__", "__scheduled__"})
"""The channels of a checkpoint's pending writes that do not show their task as done.

They are visible to every reader of a checkpointer; only the interrupt's name is documented.
"""


def starting_tool() -> BaseTool | None:
    """Return the tool that tells its callbacks of its start; None if unknown.

    The frames of `BaseTool.run` and `arun`: a callback gets a tool's name, and two tools may have
    the same.
    """
    frame = inspect.currentframe()
    for _ in range(_FRAMES):
        if frame is None:
            break
        tool = frame.f_locals.get("self") if frame.f_code.co_name in _RUNS else None
        if isinstance(tool, BaseTool):
            return tool
        frame = frame.f_back
    return None


_RUNS: Final = frozenset({"run", "arun"})
_FRAMES: Final = 12  # between these and a callback


def checkpointer_in(configurable: Mapping[str, Any]) -> Any:
    """Return the checkpointer of the enclosing graph; None if it has none.

    `__pregel_checkpointer`: nested graphs get it by this key. `get_config()` has no other.
    """
    return configurable.get("__pregel_checkpointer")


def attempt_in(configurable: Any) -> tuple[Any, int] | None:
    """Return the attempt at the enclosing task; None outside of a graph.

    The counters of the task's graphs (a retry has the same, a resume new ones), and the attempt's
    number.

    `__pregel_scratchpad` and `__pregel_runtime`: a task does not show whether it was resumed, and
    only nodes get the runtime, not the functions that they call.
    """
    pad: Any = configurable.get("__pregel_scratchpad") if is_object(configurable) else None
    if pad is None:
        return None
    info = getattr(configurable.get("__pregel_runtime"), "execution_info", None)
    return pad.subgraph_counter, getattr(info, "node_attempt", 1)


class GraphTask(NamedTuple):
    """A task, the same in each run of its superstep.

    Attributes:
        name: its node's name; for a sent or called task, with its number.
        slot: that number.
        is_push: whether it was sent, or called.
        is_called: whether a task of the functional API has called it.
    """

    name: str
    slot: int
    is_push: bool
    is_called: bool


def task_in(metadata: Mapping[str, Any]) -> GraphTask:
    """Return the enclosing task, by its path.

    `__pregel_pull` and `__pregel_push` are the beginnings of `langgraph_path`, which is documented.
    """
    node: str = str(metadata.get("langgraph_node", ""))
    path: Any = metadata.get("langgraph_path") or ()
    if len(path) < 2 or path[0] != "__pregel_push":
        return GraphTask(node, 0, is_push=False, is_called=False)
    is_called = not isinstance(path[1], int)
    slot = int(path[2]) if is_called else path[1]
    return GraphTask(f"{node}/{slot}", slot, is_push=True, is_called=is_called)


def tasks_beside(configurable: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tasks in the current superstep; see `task_in`.

    `__pregel_read`: by it a task reads the channels of its graph, which show the triggered tasks.
    Nothing public tells a task whether it is alone, before another one has begun.
    """
    read: Any = configurable.get("__pregel_read")
    channels: Any = read.args[1] if len(getattr(read, "args", ())) > 1 else {}
    found = [
        str(name.rpartition(":")[2])
        for name in sorted(channels)
        if name.startswith(_TRIGGERS) and channels[name].is_available()
    ]
    sent: Any = channels.get("__pregel_tasks")
    if sent is not None and sent.is_available():
        found += [f"{each.node}/{at}" for at, each in enumerate(sent.get())]
    return tuple(found)


_TRIGGERS: Final = ("branch:to:", "join:")


def mcp_error(text: str) -> ToolException:
    """Return the error by which langchain-mcp-adapters tells the model that a tool failed.

    `_MCPToolExecutionError`, which the adapters handle themselves: the model gets its content
    blocks; any other `ToolException` ends the agent.
    """
    adapters = sys.modules.get("langchain_mcp_adapters.tools")
    kind: Any = getattr(adapters, "_MCPToolExecutionError", None)
    return ToolException(text) if kind is None else kind([{"type": "text", "text": text}])
