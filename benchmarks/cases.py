"""List every case by its name, with its function and the sizes it runs at."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Final

Case = Callable[..., dict[str, float]]
"""Takes the number of calls and an empty folder on the disk; returns its measures by name.

An agent's case also takes how many calls its model asks for `together`, a policy's case how many
`rules` the policy has.
"""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Say where a case is found, and what it needs.

    Attributes:
        label: the case's name in the table.
        module: its module in this package.
        function: its function there.
        needs: the distribution that has to be installed for it; empty for our own.
        together: how many calls an agent's model asks for at once; 0 without an agent.
        sourced: it resumes a recorded run, which is made once and given to each round.
        rules: how many rules the policy has; 0 without a policy.
    """

    label: str
    module: str
    function: str
    needs: str = ""
    together: int = 0
    sourced: bool = False
    rules: int = 0

    def load(self) -> Case:
        """Return the function itself. Raises ImportError if its library is missing."""
        case: Case = getattr(importlib.import_module(f"benchmarks.{self.module}"), self.function)
        sizes = {"together": self.together, "rules": self.rules}
        given = {name: size for name, size in sizes.items() if size}
        return functools.partial(case, **given) if given else case


OURS: Final[dict[str, Spec]] = {
    "write": Spec("write", "ours", "write"),
    "awrite": Spec("write, async", "ours", "awrite"),
    "undoable": Spec("write that can be undone", "undo", "write"),
    "aundoable": Spec("write that can be undone, async", "undo", "awrite"),
    "read": Spec("read", "ours", "read"),
    "aread": Spec("read, async", "ours", "aread"),
    "hit": Spec("hit", "ours", "hit", sourced=True),
    "ahit": Spec("hit, async", "ours", "ahit", sourced=True),
}
POLICED: Final[dict[str, Spec]] = {
    f"write-{rules}-rules": Spec(f"write, policy of {rules} rules", "gate", "write", rules=rules)
    for rules in (0, 10)
}
UNDO: Final[dict[str, Spec]] = {
    "undo": Spec("undo, of a live session", "undo", "live"),
    "undo-run": Spec("undo, of a finished run", "undo", "finished"),
}
FLOOR: Final[dict[str, Spec]] = {"floor": Spec("floor", "floor", "write")}
OPENING: Final[dict[str, Spec]] = {
    "open": Spec("open a source", "ours", "open_source", sourced=True),
    "parse": Spec("parse its lines", "ours", "parse_source", sourced=True),
    "begin": Spec("begin behind a run that ended ok", "ours", "begin_again"),
    "crash-2": Spec("2nd resume of a crashing job", "ours", "open_second"),
    "crash-60": Spec("60th resume of a crashing job", "ours", "open_sixtieth"),
}
LOOP: Final[dict[str, Spec]] = {
    "write-sqlite": Spec("write, SQLite", "ours", "write_sqlite"),
    "awrite-sqlite": Spec("write, SQLite, async", "ours", "awrite_sqlite"),
    "awrite-16": Spec("write, async, of 16 sessions", "ours", "awrite_together"),
}
RULES: Final = (10, 100, 1_000)
BARE: Final[dict[str, Spec]] = {
    "bare": Spec("two conditions bare, by hand", "gate", "by_hand"),
    "bare-named": Spec("two conditions bare, a variable each", "gate", "by_name"),
    "bare-kept": Spec("two conditions bare, all arguments", "gate", "kept"),
    "bare-plain": Spec("two conditions bare, a dict each", "gate", "plain"),
}
GATE: Final[dict[str, Spec]] = {
    f"decide-{rules}": Spec(f"decision, {rules:,} rules", "gate", "decide", rules=rules)
    for rules in RULES
}
CEDAR: Final[dict[str, Spec]] = {
    f"cedar-{rules}": Spec(f"Cedar, {rules:,} rules", "gate", "cedar", "cedarpy", rules=rules)
    for rules in RULES
}
PEERS: Final[dict[str, Spec]] = {
    "failcore": Spec("failcore, JSONL", "peers.failcore_run", "write", "failcore"),
    "langgraph": Spec(
        "LangGraph @task, SQLite", "peers.langgraph_task", "write", "langgraph-checkpoint-sqlite"
    ),
    "langgraph-hit": Spec(
        "LangGraph @task found done", "peers.langgraph_task", "hit", "langgraph-checkpoint-sqlite"
    ),
    "dbos": Spec("DBOS step, SQLite", "peers.dbos_step", "write", "dbos"),
    "dbos-hit": Spec("DBOS step found done", "peers.dbos_step", "hit", "dbos"),
}
FRAMEWORKS: Final[dict[str, Spec]] = {
    f"{name}-{together}": Spec(
        f"{label}, {told}", f"frameworks.{name}_agent", "agents", f"rollcage-{name}", together
    )
    for name, label in (("langchain", "LangChain"), ("autogen", "AutoGen"), ("crewai", "CrewAI"))
    for together, told in ((1, "one by one"), (10, "ten at once"))
}
SERVICE: Final[dict[str, Spec]] = {
    "service": Spec(
        "a service, LangChain", "frameworks.langchain_service", "requests", "rollcage-langchain"
    ),
}
RECORD: Final = Spec("record a source", "ours", "record_source")
DECISIONS: Final = {**BARE, **GATE, **CEDAR}
ALL: Final = {
    **FLOOR, **OURS, **POLICED, **UNDO, **OPENING, **LOOP, **DECISIONS, **PEERS, **FRAMEWORKS,
    **SERVICE, "record": RECORD,
}  # fmt: skip

IMPORTS: Final[dict[str, tuple[str, str]]] = {
    "rollcage": ("import rollcage", "import rollcage"),
    "session": ("from rollcage import Session, tool", "from rollcage import Session, tool"),
    "needed": (
        "from pydantic import BaseModel; import orjson",
        "from pydantic import BaseModel; import orjson",
    ),
    "version": (
        "rollcage --version",
        "import sys, rollcage.__main__ as r; sys.argv[1:] = ['--version']; r.main()",
    ),
}
"""By name: the label in the table, and the statement."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Say how much is measured.

    Attributes:
        sizes: calls a case, from small to large.
        peer_calls: calls a peer.
        decisions: decisions a policy.
        agent_calls: calls of the tool of a framework's agents.
        frameworks: the frameworks whose agents are measured.
        open_steps: steps of the source that is opened.
        undo_steps: writes of the runs that are undone, from small to large.
        rounds: how many processes measure each case; the table shows their median.
        agent_rounds: the rounds of agents and services, whose frameworks take seconds to import.
        import_rounds: the rounds of the imports.
    """

    sizes: Sequence[int] = (1_000, 10_000, 100_000)
    peer_calls: int = 1_000
    decisions: int = 20_000
    agent_calls: int = 1_000
    frameworks: Sequence[str] = ("langchain", "autogen", "crewai")
    open_steps: int = 100_000
    undo_steps: Sequence[int] = (100, 1_000)
    rounds: int = 5
    agent_rounds: int = 5
    import_rounds: int = 15

    @classmethod
    def quick(cls) -> Plan:
        """Return a plan for a smoke run of well under a minute."""
        return cls(
            (500, 2_000),
            peer_calls=100,
            decisions=500,
            agent_calls=100,
            open_steps=2_000,
            rounds=2,
            agent_rounds=1,
            import_rounds=3,
        )
