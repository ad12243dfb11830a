"""The program of the demo's agent: a LangChain agent over third-party tools.

Run as `python -m rollcage_cli.demo.agent FOLDER`. It imports LangChain and plays the acts that it
reads (see `process`). It reports `turn` at each call of its model: then the trace is shown.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollcage import Session, StepView, Verdict

from rollcage_cli.demo.job import (
    CLEAN,
    DRIFT,
    EFFECTS,
    ESCAPE,
    MISSING,
    NAME_DRIFT,
    NAME_ESCAPE,
    NAME_MISSING,
    NAME_REPORT,
    NAME_WRECK,
    WRECK,
    IssuedCall,
    Scene,
    report,
)
from rollcage_cli.demo.process import serve
from rollcage_cli.demo.tools import for_agents, for_contracts

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

__all__ = ["main"]


_HEAVY: Final = (
    "langchain.agents",
    "langchain_community.agent_toolkits",
    "langchain_community.utilities",
    "rollcage_langchain",
    "sqlalchemy",
)
_ASKS: Final[Mapping[str, tuple[str, Sequence[IssuedCall]]]] = {
    "drift": (NAME_DRIFT, DRIFT),
    "missing": (NAME_MISSING, MISSING),
    "wreck": (NAME_WRECK, WRECK),
}


def main(arguments: Sequence[str]) -> int:
    """Play acts: `slip`, `resume`, `escape`, `drift`, `missing`, `wreck`."""
    with warnings.catch_warnings():
        # The package announces on import that it will be split up, which the audience can't change.
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in _HEAVY:
            importlib.import_module(module)
    scene = Scene(Path(arguments[0]))
    return serve(lambda act, tell: _play(scene, act, lambda: tell("turn")))


def _play(scene: Scene, act: str, asked: Callable[[], None]) -> str:
    if act == "escape":
        asks: Sequence[IssuedCall] = ESCAPE
        session = Session(NAME_ESCAPE, store=scene.store, gate=[_inside(scene.workspace)])
    elif act in _ASKS:
        name, asks = _ASKS[act]
        session = Session(name, store=scene.store)
    else:
        asks = report(slip=act == "slip")
        session = Session(NAME_REPORT, store=scene.store)
    model = _scripted_model(asks, asked)
    with session:
        if act == "wreck":
            tools = _own_tools(for_agents(scene), session)
        elif act in _ASKS:
            tools = _own_tools(for_contracts(scene), session)
        else:
            tools = _others_tools(scene, model, session)
        return _run_agent(model, tools, session)


def _run_agent(model: BaseChatModel, tools: Sequence[BaseTool], session: Session) -> str:
    """Run an ordinary agent with guarded tools; one name in it is Rollcage's."""
    from langchain.agents import (
        create_agent,  # pyright: ignore[reportUnknownVariableType] - partly untyped there
    )
    from rollcage_langchain import RollcageMiddleware

    agent: Any = create_agent(model, tools, middleware=[RollcageMiddleware(session)])
    question = {"role": "user", "content": f"Do this: {session.name}."}
    state = agent.invoke({"messages": [question]}, {"recursion_limit": 100})
    return str(state["messages"][-1].content)


def _own_tools(tools: Sequence[Callable[..., Any]], session: Session) -> Sequence[BaseTool]:
    """Return declared functions as LangChain tools."""
    from rollcage_langchain import as_tools

    return as_tools(tools, session)


def _others_tools(scene: Scene, model: BaseChatModel, session: Session) -> Sequence[BaseTool]:
    """Return the unchanged tools of two langchain-community toolkits, guarded."""
    from langchain_community.agent_toolkits import FileManagementToolkit, SQLDatabaseToolkit
    from langchain_community.utilities import SQLDatabase
    from rollcage_langchain import guard_tools
    from sqlalchemy import create_engine

    files = FileManagementToolkit(root_dir=str(scene.workspace))
    database = SQLDatabase(create_engine(f"sqlite:///{scene.database}"))
    tools = [*files.get_tools(), *SQLDatabaseToolkit(db=database, llm=model).get_tools()]
    return guard_tools(tools, session, effects=EFFECTS, contracts=CLEAN)


def _inside(workspace: Path) -> Any:
    """Return a rule: every path argument stays in the workspace."""

    def inside_workspace(view: StepView) -> Verdict | None:
        for name, value in view.args.items():
            if not name.endswith("_path"):
                continue
            if not (workspace / str(value)).resolve().is_relative_to(workspace.resolve()):
                return Verdict.deny(f"{value} is outside of the workspace", code="path_escape")
        return None

    return inside_workspace


def _scripted_model(asks: Sequence[IssuedCall], asked: Callable[[], None]) -> BaseChatModel:
    """Return a chat model that issues these calls in order, then repeats its last input."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class ScriptedModel(BaseChatModel):
        """Returns prepared answers; every other part of the agent is real."""

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            """Return the model: the script names the tools already."""
            del tools, kwargs
            return self

        def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
            asked()
            turn = sum(isinstance(message, AIMessage) for message in messages)
            if turn < len(asks):
                call = {"name": asks[turn].tool, "args": asks[turn].args, "id": f"call-{turn + 1}"}
                answer = AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
            else:
                heard = [m for m in messages if isinstance(m, ToolMessage)]
                answer = AIMessage(f"The last tool said: {heard[-1].content}")
            return ChatResult(generations=[ChatGeneration(message=answer)])

    return ScriptedModel()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
