"""Guarded crews: all the tools of all agents, the place of each call, and how a crew ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from crewai import Crew
from crewai.agents.cache.cache_handler import CacheHandler
from crewai.skills.tool import LoadSkillTool
from crewai.tools.agent_tools.add_image_tool import AddImageTool
from crewai.tools.agent_tools.agent_tools import AgentTools
from crewai.tools.agent_tools.read_file_tool import ReadFileTool
from crewai.tools.memory_tools import RecallMemoryTool, RememberTool
from rollcage import Session
from rollcage.errors import ContractError
from rollcage_adapter import GUARD, Declarations, Effect, LateTools, check_names, is_list

from rollcage_crewai.executor import GuardedAgent, guarded_executor
from rollcage_crewai.private import CREATE_MANAGER, cache_of, set_cache
from rollcage_crewai.tools import guard_tools

__all__ = ["guard_crew"]

C = TypeVar("C", bound=Crew)

_ADDED: Final = (LoadSkillTool, ReadFileTool, RecallMemoryTool, RememberTool)  # CrewAI's own
_LATER: Final = ("apps", "mcps")  # bring tools that are not known yet


def guard_crew(
    crew: C,
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> C:
    """Return a crew of the same type, whose tool calls go through the session.

    All present and future tools of its agents are guarded: their own, those of tasks, and CrewAI's
    additions (delegation, memory, files, MCP, platform). The session gets each call's turn, slot,
    id and agent. The model gets a refusal as a `ToolFailure`. CrewAI's retries don't run a tool
    again that raised; a task is not started over once a tool was called. When the session halts,
    the crew ends, and leaving the session raises the error that halted it.

    The original crew, its agents and its tasks are not changed; the outputs of tasks are found at
    the tasks of the guarded crew. Copies of it, which `kickoff_for_each` makes, are guarded too. It
    starts with an empty tool cache. Its models are not guarded: see `guard_model`.

    Args:
        crew: any crew of CrewAI's own agents.
        session: the session that guards the calls; it must be entered before the first one.
        effects: see `guard_tools`; for tools that are not guarded yet.
        contracts: see `guard_tools`.

    Raises:
        ContractError: an agent of another framework, a crew that another session guards, or an
            unknown name; tools of an MCP server or a platform become known only later.
    """
    own = vars(crew).get(GUARD)
    if isinstance(own, _CrewGuard):
        if own.session is session and effects is None and contracts is None:
            return crew
        whose = "this" if own.session is session else "another"
        raise ContractError(f"the crew is guarded by {whose} session already: guard the original")
    _check_declared(crew, effects=effects or {}, contracts=contracts or {})
    twin: C = _CrewGuard(session, effects or {}, contracts or {}).twin(crew)
    return twin


def _check_declared(crew: Crew, **declared: Mapping[str, Any]) -> None:
    """Refuse declarations of tools that the crew does not have."""
    agents: list[Any] = [*crew.agents, *filter(None, [crew.manager_agent])]
    agents += [task.agent for task in crew.tasks if task.agent is not None]
    if any(getattr(agent, name, None) for agent in agents for name in _LATER):
        return
    own: list[Any] = [*AgentTools(agents=agents).tools(), AddImageTool()]
    tools = [tool for holder in (*agents, *crew.tasks) for tool in holder.tools or ()]
    added = [str(cls.model_fields["name"].default) for cls in _ADDED]
    check_names([*added, *(tool.name for tool in [*own, *tools])], **declared)


class _CrewGuard:
    """Makes guarded twins of a crew's parts, each once."""

    def __init__(
        self, session: Session, effects: Mapping[str, Effect], contracts: Declarations
    ) -> None:
        self.session = session
        self._tools = LateTools(session, guard_tools, effects, contracts)

    def twin(self, crew: Any) -> Any:
        """Return the guarded twin of a crew."""
        caches = _Twins(_empty)
        agents = _Twins(functools.partial(self._agent, caches))
        tasks = _Twins(functools.partial(_task, agents))
        for task in crew.tasks:
            if is_list(task.context):
                tasks.of(task).context = [tasks.of(each) for each in task.context]
        twin = crew.model_copy(
            update={
                "agents": [agents.of(agent) for agent in crew.agents],
                "tasks": [tasks.of(task) for task in crew.tasks],
                "manager_agent": crew.manager_agent and agents.of(crew.manager_agent),
            }
        )
        set_cache(twin, caches.of(cache_of(crew)))
        cls: Any = crew.__class__

        def copy() -> Any:
            return self.twin(cls.copy(twin))

        def create_manager_agent() -> None:
            getattr(cls, CREATE_MANAGER)(twin)
            manager = agents.of(twin.manager_agent)
            manager.crew = twin
            twin.manager_agent = manager

        members = {
            GUARD: self,
            "copy": copy,
            CREATE_MANAGER: create_manager_agent,
        }
        for name, value in members.items():
            object.__setattr__(twin, name, value)
        return twin

    def _agent(self, caches: _Twins, agent: Any) -> Any:
        base = getattr(agent, "executor_class", None)
        if base is None:
            raise ContractError(
                f"agent {agent.role!r} is a {type(agent).__name__}, which runs its tools itself: "
                f"guard them with the adapter of its framework"
            )
        update = {"agent_executor": None, "executor_class": guarded_executor(base)}
        handler = getattr(agent, "tools_handler", None)
        if handler is not None:
            cache = caches.of(handler.cache)
            update["tools_handler"] = handler.model_copy(
                update={"cache": cache, "last_used_tool": None}
            )
            update["cache_handler"] = caches.of(agent.cache_handler)
        twin = agent.model_copy(update=update)
        object.__setattr__(twin, GUARD, GuardedAgent(self.session, self._tools.guarded))
        if getattr(agent, "mcps", None):
            from rollcage_crewai.agent_servers import mcp_tools_of

            object.__setattr__(twin, "get_mcp_tools", mcp_tools_of(twin, self.session))
        return twin


class _Twins:
    """The twins of some objects; a twin's twin is itself."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, original: Any) -> Any:
        found = self._made.get(id(original))
        if found is None:
            twin = self._make(original)
            found = self._made[id(original)] = original, twin
            self._made[id(twin)] = twin, twin
        return found[1]


def _empty(cache: CacheHandler | None) -> CacheHandler | None:
    """Return an empty tool cache in place of one: an earlier run's entries don't count."""
    return None if cache is None else CacheHandler()


def _task(agents: _Twins, task: Any) -> Any:
    agent = task.agent and agents.of(task.agent)
    return task.model_copy(update={"agent": agent, "processed_by_agents": set[str]()})
