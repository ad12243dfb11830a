"""The public names, the tree of errors as it is drawn, and what importing costs."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import rollcage
from rollcage import errors


def test_the_public_names_are_sorted_and_there() -> None:
    names = rollcage.__all__
    assert names == sorted(names, key=lambda name: (not name[0].isupper(), name))
    for name in names:
        assert hasattr(rollcage, name)


def test_what_is_public_says_what_it_is() -> None:
    for name in rollcage.__all__:
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
        beside = (TimeoutError,) if each is errors.ReplayedCancellation else ()
        assert each.__bases__ == (getattr(errors, parent) if parent else Exception, *beside)
        assert not code or each.code == code


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [each.code for each in classes()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", code) for code in codes)


def test_every_error_is_exported_where_users_look() -> None:
    assert {each.__name__ for each in classes()} <= {*rollcage.__all__}
    assert errors.__all__ == sorted(errors.__all__, key=lambda name: (not name.isupper(), name))


# --- what an import brings in --------------------------------------------------------------------


def test_importing_brings_in_no_framework_and_builds_no_model_of_events(python: Any) -> None:
    done = python(
        """
        import sys
        before = set(sys.modules)  # what measures the tests has loaded, if it does
        import rollcage
        from rollcage import Session, tool

        heavy = ("langchain", "langgraph", "autogen", "crewai", "cel", "typer", "rich", "httpx",
                 "sqlalchemy", "opentelemetry", "zoneinfo", "rollcage_cli", "rollcage_langchain")
        loaded = [name for name in sys.modules if name.startswith(heavy)]
        assert not loaded, loaded
        assert "rollcage.trace.log_models" not in sys.modules
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
        assert "rollcage.trace.log_models" not in sys.modules  # nor does recording or replaying
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
        assert rooms == {"errors", "values"}, loaded
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
        for room in ("calls", "contract", "errors", "fingerprint", "session", "stages", "values")
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == set()
