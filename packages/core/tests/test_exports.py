"""The public names, the tree of errors as it is drawn, and what importing costs."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import rollcage
from rollcage import adapter, errors, store, trace

PUBLIC = [
    "Approval", "ApprovalCorrupt", "ApprovalInvalid", "ApprovalRequest", "ApprovalRequired",
    "Approver", "ArgumentsInvalid", "Blocked", "CaptureFailed", "Clock",
    "Compensation", "ConsoleApprover", "Contract", "ContractError", "ControlLost", "CurrentStep",
    "DetectorMissing", "DidNotHappen", "Diverged", "FacadeMissing", "Fenced", "Fork", "ForkEnded",
    "Forked", "GovernanceError", "Guard", "Halt", "Happened", "Instrument", "NotReplayable",
    "NotReplayableWarning",
    "Observer", "OrderRefused", "OutputDrift", "PackageMissing", "PermissionUndeclared",
    "PlanChanged", "PlannedCall", "PlannedStep", "PolicyInvalid", "QueueApprover",
    "RegistryCorrupt",
    "ReplayMiss", "ReplayedError", "Resolved", "Response", "RollcageError", "Rule",
    "RunAbandoned", "RunConflict", "RunElsewhere", "RunEvent", "RunInUse", "RunNotFound",
    "RunPruned", "RunStopped", "RunTooOld", "Session",
    "SessionError", "SessionHalted", "Settled", "SourceMissing", "Stats", "StepEvent",
    "StepNotFound", "StepNotUnknown", "StepView", "StoreError", "StoreInvalid", "StoreReadOnly",
    "ToolMissing", "ToolRefused", "TraceCorrupt",
    "TraceUnwritable",
    "UndoIncomplete", "UndoPlan", "UndoReport", "UndoneStep", "Unencodable", "UnguardedCallWarning",
    "UnknownOutcome", "Verdict", "abandon_run", "aplan_undo", "aundo_run", "compensate",
    "current_step", "open_store", "plan_undo", "recorded_events", "register", "resolve_step",
    "tool", "undo_run",
]  # fmt: skip
ADAPTER = [
    "GUARD", "HALTED", "NOT_RECORDED", "REFUSED", "Answer", "Ask", "Asked", "BodyForm",
    "CallNumbers", "Declarations", "Effect", "GuardedBody", "GuardedCall", "GuardedModel",
    "GuardedTool",
    "Instead", "LateTools", "McpListing", "ModelCall", "Parts", "RecordedAnswers", "Running",
    "Signature", "ToolRequest", "Trace", "Validated", "WorkAttempt", "as_object", "as_written",
    "asking",
    "call_id_here", "check_names", "declare", "declare_tool", "declared_contract", "expose",
    "exposes", "facade_here", "fixed", "gathered", "guard_each", "guard_of",
    "guarded_contract", "guarding",
    "held_by", "is_list", "is_model_class", "is_object",
    "is_tuple", "mcp_blocks", "mcp_content",
    "mcp_definition", "mcp_definitions", "mcp_failure", "model_contract",
    "model_request", "offered", "option", "plain_body", "refuse_bare", "refuses_unguarded",
    "register_parts", "required_contract", "session_here", "slot_of", "step_here", "stepped",
    "subclass", "swapped", "type_hints", "watch_methods",
]  # fmt: skip
TRACE = [
    "CHAIN_START", "FORMAT", "LOG_FORMAT", "REPLAYED", "STAND_IN", "STATES", "TAG",
    "AskedApproval", "Attempt", "Native",
    "RefusedCall", "Run", "State", "Step", "Tail", "Totals", "Traced", "Worlds", "check_events",
    "decode", "decode_exception", "encode", "encode_exception", "encode_result", "event_adapter",
    "fold", "is_log", "jcs", "json_schema", "key_digest", "read_events", "read_run",
    "register_native", "seal_line", "split_tail", "step_resolved", "tail_of",
]  # fmt: skip
STORE = [
    "DEFAULT_NAME", "JsonlStore", "Line", "Lock", "Log", "OrderKind", "Pruned", "Reader",
    "Repair", "RunInfo", "RunTrace", "StopOrder", "Store", "TraceFile", "Writer",
    "check_attested", "is_database", "is_linked", "is_run_id", "is_store", "is_store_file",
    "job_name", "lift_stop", "look", "newest_run", "open_store", "open_trace", "pause_run",
    "paused_by", "stop_run", "stopped_by", "store_option", "unpause_run", "without_password",
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "names"),
    [(rollcage, PUBLIC), (adapter, ADAPTER), (trace, TRACE), (store, STORE)],
    ids=lambda m: str(m)[:25],
)
def test_the_public_names_are_these(module: object, names: list[str]) -> None:
    assert vars(module)["__all__"] == names
    for name in names:
        assert hasattr(module, name)


def test_what_is_public_says_what_it_is() -> None:
    for name in PUBLIC:
        thing = getattr(rollcage, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing)


# --- errors --------------------------------------------------------------------------------------

DRAWN = re.compile(r"^ {4}([│ ├└─]*)(\w+) {2,}.*?(?:\(([a-z_]+)\))?$", re.MULTILINE)


def drawn() -> dict[str, tuple[str, str]]:
    """The tree in the docstring: each error's parent, and its code."""
    found: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for branches, name, code in DRAWN.findall(errors.__doc__ or ""):
        level = len(branches) // 4
        del above[level:]
        found[name] = (above[-1] if above else "", code)
        above.append(name)
    return found


def classes() -> list[type[rollcage.RollcageError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [each for each in found if issubclass(each, rollcage.RollcageError)]


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    tree = drawn()
    assert {each.__name__ for each in classes()} == tree.keys()
    for each in classes():
        parent, code = tree[each.__name__]
        assert each.__bases__ == (getattr(errors, parent) if parent else Exception,)
        assert not code or each.code == code


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [each.code for each in classes()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", code) for code in codes)


def test_every_error_is_exported_where_users_look() -> None:
    assert {each.__name__ for each in classes()} <= {*PUBLIC}
    assert errors.__all__ == sorted(errors.__all__, key=lambda name: (not name.isupper(), name))


# --- what an import brings in --------------------------------------------------------------------


def test_importing_brings_in_no_framework_and_builds_no_model_of_events(python: Any) -> None:
    done = python(
        """
        import sys
        before = set(sys.modules)  # what measures the tests has loaded, if it does
        import rollcage
        from rollcage import tool
        from rollcage.session.session import Session

        heavy = ("langchain", "langgraph", "autogen", "crewai", "cel", "typer", "rich", "httpx",
                 "sqlalchemy", "opentelemetry", "zoneinfo", "rollcage_cli", "rollcage_langchain")
        loaded = [name for name in sys.modules if name.startswith(heavy)]
        assert not loaded, loaded
        assert "rollcage.trace.models" not in sys.modules
        seldom = ("importlib.metadata", "email", "zipfile", "csv", "getpass", "termios",
                  "sqlite3", "tomllib", "yaml")
        assert not [name for name in seldom if name in sys.modules and name not in before]

        @tool
        def write(what: str, at: float = 1.0) -> dict[str, int]:
            return {what: 1}

        for _ in range(2):
            with Session("job", store="store", replay="resume" if _ else "off") as session:
                assert session.call(write, what="a") == {"a": 1}
        assert session.stats.hits == 1
        assert "rollcage.trace.models" not in sys.modules  # nor does recording or replaying
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_name_is_imported_when_it_is_asked_for(python: Any) -> None:
    done = python(
        """
        import sys
        import rollcage

        loaded = {name for name in sys.modules if name.startswith("rollcage")}
        rooms = {name.split(".")[1] for name in loaded if "." in name}
        assert rooms == {"errors"}, loaded
        assert rollcage.Session is sys.modules["rollcage.session.session"].Session
        try:
            rollcage.Sesion
        except AttributeError as error:
            assert "Sesion" in str(error)
        else:
            raise SystemExit("what is misspelled was found")
        """
    )
    assert done.returncode == 0, done.stderr


def test_core_needs_only_its_own_libraries(python: Any) -> None:
    done = python(
        """
        import sys

        def roots():
            return {name.split(".")[0] for name in sys.modules}

        import pydantic, pydantic.networks, orjson, rfc8785
        pydantic.create_model("Warm", x=(int, 1))
        before = roots()
        from rollcage import *
        print(*sorted(roots() - before - set(sys.stdlib_module_names)))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["rollcage"]


def test_a_name_of_a_type_means_one_thing() -> None:
    """Private ones included: whoever searches for a name finds one definition."""
    root = Path(rollcage.__file__).parent
    found = Counter(
        node.name
        for path in root.rglob("*.py")
        if not path.is_relative_to(root / "heart")  # the new core, beside the old one
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == set()
