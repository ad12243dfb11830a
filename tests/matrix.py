"""Record in each framework, replay in each: the whole matrix as a table, by one command.

    python tests/matrix.py [--json] [FRAMEWORK ...]

It plays with the harness of each adapter's own conformance tests, and with the reference harness,
which uses no framework. A framework that is not installed here is left out, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from rollcage_conformance import AdapterSuite, Capabilities, Harness
from rollcage_conformance.crossing import CASES, Crossing, Matrix, Party
from rollcage_conformance.reference import ReferenceHarness

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = "reference"


def frameworks() -> list[str]:
    """Return the project's frameworks, installed or not."""
    found = ROOT.glob("integrations/*/tests/test_conformance.py")
    return sorted(path.parents[1].name for path in found)


def party(name: str) -> Party | str:
    """Return a framework with its harness, or why it can't take part here."""
    if name == REFERENCE:
        return Party(name, ReferenceHarness())
    if importlib.util.find_spec(f"rollcage_{name}") is None:
        return f"rollcage_{name} is not installed in this environment"
    tests = ROOT / "integrations" / name / "tests"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what frameworks say when they are imported is theirs
            if (tests / "conftest.py").exists():  # it keeps the framework from network and home
                _loaded(f"rollcage_matrix_{name}_conftest", tests / "conftest.py")
            module = _loaded(f"rollcage_matrix_{name}", tests / "test_conformance.py")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("rollcage"):
            raise
        return f"{error.name}, which {name} needs, is not installed in this environment"
    harness: Harness = module.HARNESS
    suites = [each for each in vars(module).values() if _is_suite(each, module.__name__)]
    capabilities = cast("Capabilities", suites[0].capabilities)
    return Party(name, harness, capabilities)


def _loaded(name: str, path: Path) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _is_suite(each: Any, module: str) -> bool:
    return isinstance(each, type) and issubclass(each, AdapterSuite) and each.__module__ == module


def crossings(parties: Sequence[Party], root: Path) -> Iterator[Crossing]:
    """Cross each case between each pair of frameworks, in both directions, and with itself."""
    matrix = Matrix(root)
    for recorder in parties:
        for replayer in parties:
            for case in CASES:
                yield matrix.cross(recorder, replayer, case)


# --- the table -----------------------------------------------------------------------------------


def table(found: Sequence[Crossing]) -> str:
    """Return a row for each pair and a column for each case, with the failures below."""
    heads = ["record", "replay", *(case.name for case in CASES), "bodies run", "keys equal"]
    pairs = list(dict.fromkeys((each.recorder, each.replayer) for each in found))
    rows = [heads]
    for pair in pairs:
        own = [each for each in found if (each.recorder, each.replayer) == pair]
        crossed = {each.case: "✓" if each.ok else "✗" for each in own}
        marks = [crossed.get(case.name, "") for case in CASES]
        bodies = sum(each.bodies for each in own)
        keys = f"{sum(each.keys for each in own)} of {sum(each.calls for each in own)}"
        rows.append([*pair, *marks, str(bodies), keys])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for each in found:
        lines += [f"✗ {each.recorder} → {each.replayer}: {reason}" for reason in each.reasons]
    return "\n".join(line.rstrip() for line in lines)


def summary(found: Sequence[Crossing]) -> str:
    """Return one line of figures."""
    passed = sum(each.ok for each in found)
    bodies = sum(each.bodies for each in found)
    keys, calls = sum(each.keys for each in found), sum(each.calls for each in found)
    return (
        f"{passed} of {len(found)} crossings pass; {bodies} bodies run in replay; "
        f"{keys} of {calls} keys equal"
    )


@contextlib.contextmanager
def apart() -> Generator[None]:
    """Keep the environment that the frameworks' tests set to this block."""
    kept = dict(os.environ)
    logging.disable(logging.CRITICAL)  # agents that are meant to fail say so at length
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the matrix; return 1 if a case did not cross, or a framework asked for is not here."""
    parser = argparse.ArgumentParser(description="Record in each framework, replay in each.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("framework", nargs="*", help="only these (default: all that are installed)")
    options = parser.parse_args(arguments)
    wanted: list[str] = options.framework or [REFERENCE, *frameworks()]
    with tempfile.TemporaryDirectory(prefix="rollcage-matrix-") as folder, apart():
        cast = {name: party(name) for name in wanted}
        absent = {name: why for name, why in cast.items() if isinstance(why, str)}
        present = [each for each in cast.values() if isinstance(each, Party)]
        found = list(crossings(present, Path(folder)))
    if options.json:
        data = [{**dataclasses.asdict(each), "ok": each.ok} for each in found]
        print(json.dumps({"crossings": data, "absent": absent}, indent=1, ensure_ascii=False))
    else:
        print(table(found))
        print(summary(found))
        for name, why in absent.items():
            print(f"left out: {name} ({why})")
    complete = not (options.framework and absent)
    return 0 if complete and all(each.ok for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
