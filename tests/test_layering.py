"""Imports point down: core's rooms stand on floors, and the table below is their plan."""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# Core's rooms from top to bottom: a room is a folder, or a module beside them. An import reaches a
# lower floor, or stays within its room where that closes no cycle. A module in no room fails.
ROOMS: list[set[str]] = [
    {"__main__"},
    {"__init__"},
    {"session"},
    {"stages"},
    {"calls"},
    {"undo"},
    {"replay"},
    {"gate"},
    {"trace"},
    {"contract"},
    {"fingerprint"},
    {"values"},
    {"errors"},
]

# What core imports when it is imported. Any other library is optional, and imported in a function.
CORE_LIBRARIES = {"orjson", "pydantic", "pydantic_core", "rfc8785", "typing_extensions"}

# What the other distributions may import of core: names of these modules, and of none below them.
PUBLIC = {
    "rollcage",
    "rollcage.calls.attempt",
    "rollcage.calls.gate",
    "rollcage.calls.stage",
    "rollcage.contract.permissions",
    "rollcage.errors",
    "rollcage.gate",
    "rollcage.gate.leaves",
    "rollcage.replay.call",
    "rollcage.replay.matching",
    "rollcage.session.adapters",
    "rollcage.session.imports",
    "rollcage.session.session",
    "rollcage.session.undoing",
    "rollcage.stages.once",
    "rollcage.stages.orders",
    "rollcage.stages.queue",
    "rollcage.trace",
    "rollcage.trace.bell",
    "rollcage.trace.chain",
    "rollcage.trace.claims",
    "rollcage.trace.endings",
    "rollcage.trace.folder",
    "rollcage.trace.keys",
    "rollcage.trace.lines",
    "rollcage.trace.listing",
    "rollcage.trace.processes",
    "rollcage.trace.recorded",
    "rollcage.trace.run",
    "rollcage.trace.seal",
    "rollcage.trace.store",
    "rollcage.trace.writer",
}

# Frameworks are for integrations, and no distribution imports another than core ...
FRAMEWORKS = ("autogen", "crewai", "langchain", "langgraph")
# ... but for these, inside a function: (importing module or package, what it imports).
LAZY = {
    ("rollcage.__main__", "rollcage_cli"),
    ("rollcage_mcp.guards", "rollcage_governance"),
    ("rollcage_mcp.guards", "rollcage_policy"),
    ("rollcage_cli.doctor", "rollcage_governance"),
    ("rollcage_cli.export", "rollcage_otel"),
    ("rollcage_mcp.commands", "rollcage_workflow"),
    ("rollcage_workflow.governed", "rollcage_governance"),
    ("rollcage_cli.demo", "rollcage_langchain"),
    ("rollcage_cli.demo", "rollcage_toolbox"),
    ("rollcage_cli.demo", "langchain"),
    ("rollcage_cli.demo", "langchain_community"),
    ("rollcage_cli.demo", "langchain_core"),
    ("rollcage_cli.quickstart.autogen", "autogen_agentchat"),
    ("rollcage_cli.quickstart.autogen", "autogen_core"),
    ("rollcage_cli.quickstart.autogen", "rollcage_autogen"),
    ("rollcage_cli.quickstart.crewai", "crewai"),
    ("rollcage_cli.quickstart.crewai", "rollcage_crewai"),
    ("rollcage_cli.quickstart.langchain", "langchain"),
    ("rollcage_cli.quickstart.langchain", "langchain_core"),
    ("rollcage_cli.quickstart.langchain", "rollcage_langchain"),
}
# ... and for these: commands that a package brings to the command line, and suites that need it.
BESIDE = {
    ("rollcage_autogen", "rollcage_adapter"),
    ("rollcage_conformance", "rollcage_adapter"),
    ("rollcage_crewai", "rollcage_adapter"),
    ("rollcage_langchain", "rollcage_adapter"),
    ("rollcage_cli.tools", "rollcage_adapter"),
    ("rollcage_cli.forks", "rollcage_fork"),
    ("rollcage_cli", "rollcage_stores"),
    ("rollcage_cli", "rollcage_views"),
    ("rollcage_conformance", "rollcage_fork"),
    ("rollcage_conformance", "rollcage_governance"),
    ("rollcage_conformance", "rollcage_policy"),
    ("rollcage_governance.commands", "rollcage_adapter"),
    ("rollcage_governance.commands", "rollcage_cli"),
    ("rollcage_governance.views", "rollcage_cli"),
    ("rollcage_governance.views", "rollcage_views"),
    ("rollcage_import", "rollcage_adapter"),
    ("rollcage_import", "rollcage_policy"),
    ("rollcage_import.commands", "rollcage_cli"),
    ("rollcage_mcp", "rollcage_adapter"),
    ("rollcage_mcp.accepting", "rollcage_cli"),
    ("rollcage_mcp.commands", "rollcage_cli"),
    ("rollcage_mcp.confirming", "rollcage_cli"),
    ("rollcage_mcp.confirming", "rollcage_views"),
    ("rollcage_policy.commands", "rollcage_cli"),
    ("rollcage_policy.commands", "rollcage_views"),
    ("rollcage_policy.recorded", "rollcage_views"),
    ("rollcage_policy.rerun", "rollcage_views"),
    ("rollcage_mcp.approving", "rollcage_views"),
    ("rollcage_mcp.logs", "rollcage_views"),
    ("rollcage_mcp.queued", "rollcage_views"),
    ("rollcage_mcp.server_questions", "rollcage_views"),
    ("rollcage_mcp.install", "rollcage_cli"),
    ("rollcage_pytest", "rollcage_views"),
    ("rollcage_pytest.cassette", "rollcage_policy"),
    ("rollcage_server.governed", "rollcage_governance"),
    ("rollcage_toolbox.addresses", "rollcage_policy"),
    ("rollcage_server", "rollcage_views"),
    ("rollcage_server", "rollcage_workflow"),
    ("rollcage_server.commands", "rollcage_cli"),
    ("rollcage_views.screen", "rollcage_policy"),
    ("rollcage_workflow.commands", "rollcage_cli"),
    ("rollcage_workflow.engine", "rollcage_views"),
}


class Import(NamedTuple):
    importer: str
    module: str
    name: str  # the name taken from the module; empty for the module itself
    lazy: bool  # in a function, or for type checkers only
    typing: bool  # for type checkers only
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line}: {self.module} {self.name}".rstrip()


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the workspace at `root`, by its full name."""
    found = {}
    for source in [*root.glob("packages/*/src"), *root.glob("integrations/*/src")]:
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(importer: str, path: Path, known: set[str]) -> Iterator[Import]:
    """Yield every import in one file, wherever it stands; relative ones by their full names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy: set[ast.AST] = set()
    typing: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            typing.update(ast.walk(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lazy.update(ast.walk(node))
    lazy |= typing
    package = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                where = node in lazy, node in typing, node.lineno
                yield Import(importer, alias.name, "", *where)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                at = (inner, "") if inner in known else (module, alias.name)
                yield Import(importer, *at, node in lazy, node in typing, node.lineno)


def row(module: str) -> int | None:
    """Return the floor of one of core's modules, counted from the top."""
    name = [*module.split("."), "__init__"][1]
    return next((place for place, rooms in enumerate(ROOMS) if name in rooms), None)


def within_core(found: list[Import], known: set[str]) -> Iterator[str]:
    """Yield the violations between core's own modules."""
    core = {module for module in known if module.split(".")[0] == "rollcage"}
    yield from (f"{module}: is in no room" for module in sorted(core) if row(module) is None)
    graph: dict[str, set[str]] = {}
    for each in found:
        above, below = row(each.importer), row(each.module)
        if not {each.importer, each.module} <= core or above is None or below is None:
            continue
        if each.typing:  # an attempt, its calls and its session name each other's types
            continue
        if below < above:
            yield f"{each}: points up"
        else:
            graph.setdefault(each.importer, set()).add(each.module)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"{' <- '.join(error.args[1])}: is a cycle"


def between(each: Import, integrations: set[str], known: set[str]) -> Iterator[str]:
    """Yield the violation of an import that leaves its distribution."""
    here, there = each.importer.split(".")[0], each.module.split(".")[0]
    if here == there or there in sys.stdlib_module_names:
        return
    pairs = LAZY | BESIDE if each.lazy else BESIDE
    allowed = (
        f"{each.importer}.".startswith(f"{where}.") for where, what in pairs if what == there
    )
    if any(allowed):
        return
    if there == "rollcage":
        if each.module not in PUBLIC or each.name.startswith("_"):
            yield f"{each}: is not public"
    elif there in {module.split(".")[0] for module in known}:
        yield f"{each}: is a sibling"
    elif there.startswith(FRAMEWORKS) and here not in integrations:
        yield f"{each}: is a framework"
    elif here == "rollcage" and not each.lazy and there not in CORE_LIBRARIES:
        yield f"{each}: is not one of core's libraries"


def violations(root: Path) -> list[str]:
    """Return all violations of the imports of the workspace at `root`."""
    paths = modules(root)
    known = set(paths)
    found = [each for name, path in paths.items() for each in imports(name, path, known)]
    integrations = {path.name for path in root.glob("integrations/*/src/*")}
    wrong = [w for each in found for w in between(each, integrations, known)]
    return [*within_core(found, known), *wrong]


def test_imports_point_down() -> None:
    assert {"rollcage", "rollcage.errors"} <= modules(ROOT).keys()
    assert violations(ROOT) == []


def classes(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each class at the top of a public module, with its module."""
    for module, path in modules(root).items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


TWICE = {
    "Approvals",
    "Around",
    "Attempt",
    "Checked",
    "Claim",
    "Effect",
    "Level",
    "Order",
    "Queued",
    "Recorded",
    "Report",
    "Request",
    "Run",
    "Secrets",
    "Stage",
    "Standing",
    "Step",
}
"""Names that stand twice: of what a session does, and of what readers or a plan make of it."""


def test_no_two_classes_share_a_core_name() -> None:
    """A name of core has one meaning for the reader of any package that imports core."""
    found: dict[str, list[str]] = {}
    for name, module in classes(ROOT):
        found.setdefault(name, []).append(module)
    twice = {
        name: places
        for name, places in found.items()
        if len(places) > 1 and any(place.split(".")[0] == "rollcage" for place in places)
    }
    assert set(twice) == TWICE


CORE = "packages/core/src/rollcage/"
CLI = "packages/cli/src/rollcage_cli/"
LANGCHAIN = "integrations/langchain/src/rollcage_langchain/"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a small workspace without violations."""
    files = {
        f"{CORE}__init__.py": "from .session.session import Session\nfrom rollcage import errors\n",
        f"{CORE}__main__.py": "def main():\n    from rollcage_cli import app\n",
        f"{CORE}session/__init__.py": "",
        f"{CORE}session/session.py": "from ..calls.flow import run\nimport orjson, os.path\n",
        f"{CORE}calls/flow.py": "from .. import errors\nfrom ..gate.policy import decide\n",
        f"{CORE}gate/__init__.py": "from .policy import decide\n",
        f"{CORE}gate/policy.py": "import orjson\nfrom ..contract.contract import Contract\n",
        f"{CORE}contract/contract.py": "from rollcage.errors import RollcageError as Error\n",
        f"{CORE}trace/__init__.py": "",
        f"{CORE}errors.py": "",
        f"{CLI}__init__.py": "from rollcage import Session\nimport typer\n",
        f"{CLI}demo.py": "def f():\n    import rollcage_langchain, langchain.agents\n",
        f"{LANGCHAIN}__init__.py": "import langchain_core\nfrom rollcage.trace import Event\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_a_sound_tree_has_no_violations(tree: Path) -> None:
    assert violations(tree) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (f"{CORE}errors.py", "from .trace import Event", "points up"),
        (f"{CORE}errors.py", "from .session import session", "points up"),
        (f"{CORE}errors.py", "from rollcage import tool", "points up"),
        (f"{CORE}gate/policy.py", "import rollcage.session.session", "points up"),
        (f"{CORE}gate/policy.py", "def f():\n    from ..calls.flow import run", "points up"),
        (f"{CORE}contract/contract.py", "from ..gate import decide", "points up"),
        (f"{CORE}gate/policy.py", "from . import decide", "is a cycle"),
        (f"{CORE}_new.py", "", "is in no room"),
        (f"{CORE}new/__init__.py", "", "is in no room"),
        (f"{CORE}session/session.py", "import psycopg", "is not one of core's libraries"),
        (f"{CORE}session/session.py", "def f():\n    import langgraph.graph", "is a framework"),
        (f"{CORE}__main__.py", "import rollcage_cli", "is a sibling"),
        (f"{CLI}new.py", "from rollcage.calls.flow import run", "is not public"),
        (f"{CLI}new.py", "from rollcage.trace import _codec", "is not public"),
        (f"{CLI}new.py", "import rollcage.gate.policy", "is not public"),
        (f"{CLI}new.py", "def f():\n    import rollcage_langchain", "is a sibling"),
        (f"{CLI}demo.py", "import rollcage_langchain", "is a sibling"),
        (f"{CLI}demo.py", "from langchain.agents import create_agent", "is a framework"),
        (f"{LANGCHAIN}new.py", "from rollcage_cli import app", "is a sibling"),
    ],
)
def test_a_violation_is_found(tree: Path, file: str, text: str, said: str) -> None:
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (only,) = violations(tree)
    assert said in only


def test_the_picture_of_core_has_its_rooms() -> None:
    drawn = set(re.findall(r'class="name">(\w+)<', (ROOT / "docs" / "house.svg").read_text()))
    rooms = {room for floor in ROOMS for room in floor if not room.startswith("_")}
    folders = [*ROOT.glob("packages/*/"), *ROOT.glob("integrations/*/")]
    beside = {folder.name for folder in folders if (folder / "pyproject.toml").is_file()} - {"core"}
    assert drawn == rooms | beside
