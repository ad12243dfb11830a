"""Counts what each path of the core costs: instructions, system calls, bytes, functions, files.

`python -m benchmarks.counting` compares with the figures that are kept in `paths.json`, and says
what has changed by more than three in a hundred; `--write` keeps the new ones. Instructions do not
depend on what else a machine does, so this is no matter of time; they do depend on the versions of
Python and of the libraries, which are kept with them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.paths import PATHS, calls_of

__all__ = ["ROOT", "counted", "instructions", "main", "main_thread_calls"]

FIGURES: Final = Path(__file__).with_name("paths.json")
CALLS: Final = 100  # of each path: a multiple of 100, so that all have numbers of as many digits
_TOLERATED: Final = 0.03
ROOT: Final = Path(__file__).parents[1]
_LIBRARIES: Final = ("orjson", "pydantic", "pydantic-core")

Figures = dict[str, dict[str, float]]
"""By path, its measures by name, each for one call."""


def main() -> None:
    """Count, print, and compare or keep. Fails only where something can't be counted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {FIGURES.name}")
    parser.add_argument("--paths", nargs="+", choices=list(PATHS), help="count these alone")
    asked = parser.parse_args()
    names: list[str] = asked.paths or list(PATHS)
    if shutil.which("valgrind") is None:
        print("skipped: valgrind counts the instructions, and is not installed")
        return
    found = instructions(names)
    calls = system_calls(names)
    for name in names:
        found[name]["system calls"] = calls.get(name, 0.0)
    print(table(found))
    kept = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    if asked.write:
        paths = {**kept.get("paths", {}), **found}
        data = {"counted with": versions(), "paths": {n: paths[n] for n in PATHS if n in paths}}
        FIGURES.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return
    if kept.get("counted with") != versions():
        print(f"The figures that are kept were counted with {kept.get('counted with')}.")
    lines = changes(kept.get("paths", {}), found)
    print("\n".join(lines) or f"Nothing has changed by more than {_TOLERATED:.0%}.")


def versions() -> dict[str, str]:
    """Return what the instructions depend on besides this repository."""
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), "machine": platform.machine(), **found}


def instructions(names: list[str]) -> Figures:
    """Return the instructions of one call of each path, its bytes, functions and files."""
    with tempfile.TemporaryDirectory() as name:
        kept = tempfile.mkdtemp(dir=name)
        printed, counts = counted("benchmarks.paths", [kept, str(CALLS), *names], Path(name))
    found: Figures = json.loads(printed.splitlines()[-1])
    for path, count in zip(names, counts, strict=True):
        found[path] = {"instructions": count / calls_of(path, CALLS), **found[path]}
    return found


def counted(module: str, arguments: list[str], folder: Path) -> tuple[str, list[int]]:
    """Run a module of this package under callgrind.

    Args:
        module: it calls `os.getppid` before and behind each part that counts, and nowhere else.
        arguments: of its command line.
        folder: an empty one.

    Returns:
        What it printed, and the instructions of each part.
    """
    out = folder / "callgrind"
    program = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--log-file={out}.log"]
    printed = _run([*program, f"--callgrind-out-file={out}"], folder, module, arguments)
    dumps = sorted(folder.glob("callgrind.[0-9]*"), key=lambda each: int(each.suffix[1:]))
    return printed, [_total(dump) for dump in dumps[1::2]]


def _total(dump: Path) -> int:
    """The instructions that a dump of callgrind counts."""
    found = re.findall(r"^(?:summary|totals): (\d+)", dump.read_text(), re.MULTILINE)
    return int(found[-1])


def system_calls(names: list[str]) -> dict[str, float]:
    """Return how many system calls one call of each path makes; nothing where strace can't."""
    found = _traced(names)
    return {path: (len(lines) - 1) / calls_of(path, CALLS) for path, lines in found.items()}


def main_thread_calls(names: list[str]) -> dict[str, Counter[str]]:
    """Return how often the main thread makes each system call, for one call of each path."""
    found: dict[str, Counter[str]] = {}
    for path, lines in _traced(names).items():
        main, _ = lines[0].split(maxsplit=1)
        made = (line.split(maxsplit=1)[1] for line in lines[1:] if line.split()[0] == main)
        tally = Counter(call.partition("(")[0] for call in made)
        calls = calls_of(path, CALLS)
        found[path] = Counter({name: round(count / calls) for name, count in tally.items()})
    return found


def _traced(names: list[str]) -> dict[str, list[str]]:
    """The lines of strace for each path, from its first mark on; {} where it can't run."""
    if shutil.which("strace") is None:
        print("system calls are not counted: strace is not installed")
        return {}
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "strace")
        try:
            arguments = [tempfile.mkdtemp(dir=name), str(CALLS), *names]
            program = ["strace", "-f", "-qq", "-o", str(log)]
            _run(program, Path(name), "benchmarks.paths", arguments)
        except subprocess.CalledProcessError as error:
            print(f"system calls are not counted: {error.stderr.splitlines()[-1:]}")
            return {}
        lines = [line for line in log.read_text(errors="replace").splitlines() if "(" in line]
    marks = [at for at, line in enumerate(lines) if "getppid()" in line]
    between = zip(marks[::2], marks[1::2], strict=True)
    return {path: lines[a:b] for path, (a, b) in zip(names, between, strict=True)}


def _run(program: list[str], folder: Path, module: str, arguments: list[str]) -> str:
    """Run a module of this package under a program that counts; what it prints."""
    command = [*program, sys.executable, "-m", module, *arguments]
    env = os.environ | {"PYTHONHASHSEED": "0"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout


def table(found: Figures) -> str:
    """The figures as a table in Markdown."""
    floor = found.get("floor", {}).get("instructions", 0)
    head = "| path | instructions | to the floor | system calls | bytes | functions | files |\n"
    rows = [head + "|---|---:|---:|---:|---:|---:|---:|"]
    for name, each in found.items():
        ratio = f"{each['instructions'] / floor:.2f}" if floor else ""
        rows.append(
            f"| {name} | {each['instructions']:,.0f} | {ratio} | {each['system calls']:,.1f} "
            f"| {each['bytes']:,.0f} | {each['calls']:,.0f} | {each['files']:,.0f} |"
        )
    return "\n".join(rows)


def changes(kept: Figures, found: Figures) -> list[str]:
    """Return a line for each measure that has changed by more than is tolerated."""
    lines: list[str] = []
    for name, measures in found.items():
        for measure, now in measures.items():
            was: Any = kept.get(name, {}).get(measure)
            if was is None:
                lines.append(f"{name}: {measure} {now:,.1f} (not kept yet)")
            elif abs(now - was) > _TOLERATED * max(was, 1):
                part = f"{now / was - 1:+.1%}" if was else "new"
                lines.append(f"{name}: {measure} {was:,.1f} → {now:,.1f} ({part})")
    return lines


if __name__ == "__main__":
    main()
