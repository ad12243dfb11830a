"""Run the tests that come by a mutant, in a child that was forked when all was imported.

`Bed` is a plugin of pytest that takes the place of its loop over the tests. First the tests run
once, measured: that tells which of them come by a line, and how long each one takes. Then each
mutant has a child, which changes one function and runs its tests until one fails: first the tests
that have found another mutant of the function, then tests that speak of what is changed, by its
words, that come by other lines about it, or by rare lines near it, and some of each file of tests.
Of these, fast ones come first.

There are two rounds. The first tries each mutant on the first of its tests, until the other tests
of those that survive would take the time that is left. In the second round, they have these tests.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import inspect
import itertools
import json
import keyword
import operator
import os
import re
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, NoReturn, TypeVar

import pytest
from coverage import Coverage

from tests.mutation.mutants import Functions, Mutant, changed, put_in_place

__all__ = ["Bed", "Tried"]

AT_ONCE = 2  # children
CHUNK = 100  # tests that are measured by one child
LONGEST = 20.0  # seconds for a mutant's tests in the first round, at most
SHORTEST = 0.02  # seconds that any test counts for, beside its own
MEMORY = 6 * 2**30
LOOK = 0.25  # seconds between looks at a child
MANY = 20  # uses of a name: more of them do not tell what a test is about
STUCK = 20  # looks at which all of a child slept: nothing will wake it
Work = Callable[[], Any]
Found = tuple[bool | None, str, int]  # whether a test failed, which, and how many were run
Left = list[tuple[Mutant, list[str], int]]  # mutants that survived the first of their tests
K = TypeVar("K")

_FOUND, _DIED = "found", ("died", None)


@dataclass(frozen=True)
class Tried:
    """What became of a mutant.

    Attributes:
        killed: whether a test failed; None if the code is the same as before.
        test: the one that failed.
        tests: how many came by.
    """

    mutant: Mutant
    killed: bool | None
    test: str
    tests: int


class Bed:
    """Try mutants on tests."""

    def __init__(self, sources: Path, chosen: list[Mutant], until: float, lines: Path) -> None:
        self.tried: list[Tried] = []
        self._sources = sources
        self._chosen = chosen
        self._until = until
        self._lines = lines
        self._failed = self._skipped = False
        self._coverage: Coverage | None = None
        self._context = ""
        self._texts: dict[str, set[str]] = {}
        self._spoken = Counter[str]()
        self._places: dict[str, set[tuple[str, int]]] = {}
        self._killers: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what comes of a test."""
        self._failed = self._failed or report.failed
        self._skipped = self._skipped or report.skipped

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Measure, below the hook that keeps laws from it."""
        if self._coverage is None:
            return (yield)
        self._coverage.start()
        self._coverage.switch_context(self._context)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            self._coverage.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all mutants that were chosen, while there is time."""
        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        self._functions = functions_below(self._sources)
        gc.collect()
        gc.freeze()
        if not self._lines.exists():
            self._lines.write_text(json.dumps(self._measure()), encoding="utf-8")
        known = json.loads(self._lines.read_text(encoding="utf-8"))
        self._took: dict[str, float] = known["took"]
        self._tests: list[str] = known["tests"]
        self._by: dict[str, dict[str, str]] = known["by"]
        self._try()
        return True

    def _measure(self) -> dict[str, Any]:
        """Find out which tests pass, how long they take, and which come by a line.

        The tests of a line are the bits of a number.
        """
        tests, took = list(self._items), dict[str, float]()
        by = defaultdict[str, Counter[str]](Counter)
        starts = reversed(range(0, len(tests), CHUNK))  # laws, which take longest, come last
        work = ((at, functools.partial(self._measured, tests[at : at + CHUNK])) for at in starts)
        for at, found in _in_children(work):
            if found is None:
                raise pytest.UsageError(f"the tests from {tests[at]} on end with their process")
            took |= found["took"]
            print(f"measured {len(took)} of {len(tests)} tests", flush=True)
            for file, lines in found["by"].items():
                for line, bits in lines.items():
                    by[file][line] |= int(bits, 16) << at
        for test in tests:
            if test not in took:
                print(f"does not count, as it does not pass here: {test}")
        hexed = {file: {line: f"{bits:x}" for line, bits in of.items()} for file, of in by.items()}
        return {"tests": tests, "took": took, "by": hexed}

    def _measured(self, tests: list[str]) -> dict[str, Any]:
        took: dict[str, float] = {}
        self._coverage = Coverage(
            data_file=None, config_file=False, include=[f"{self._sources}/*"], messages=False
        )
        for at, (test, then) in enumerate(itertools.zip_longest(tests, tests[1:])):
            self._context = str(at)
            began = _cpu()
            if self._passes(test, then):
                took[test] = _cpu() - began
        data = self._coverage.get_data()
        by = {
            str(Path(file).relative_to(self._sources)): {
                line: f"{sum(1 << int(at) for at in contexts if at):x}"
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return {"took": took, "by": by}

    def _passes(self, test: str, then: str | None) -> bool:
        """Run a test; tell whether it passed."""
        self._failed = self._skipped = False
        item, following = self._items[test], self._items[then] if then is not None else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return not (self._failed or self._skipped)

    def _try(self) -> None:
        """Try the mutants in two rounds, and print what becomes of each."""
        left: Left = []
        for (mutant, tests), found in _in_children(self._first_round(left)):
            if found and found[0] is False and found[2] < len(tests):
                left.append((mutant, tests, found[2]))
            else:
                self._tell(mutant, found, len(tests))
        print(f"{len(left)} have survived the first of their tests", flush=True)
        for (mutant, tests), found in _in_children(self._second_round(left)):
            self._tell(mutant, found, len(tests))

    def _tell(self, mutant: Mutant, found: Found | None, tests: int) -> None:
        killed, test, _ = found or (True, "", 0)  # no test ends its process without a mutant
        if test:
            self._killers[mutant.file, mutant.function][test] += 1
        self.tried.append(Tried(mutant, killed, test, tests))
        said = {True: "killed", False: "survived", None: "same"}[killed]
        print(f"{said}: {mutant.file} {mutant.function}: {mutant.change}  {test}", flush=True)

    def _first_round(self, left: Left) -> Iterator[tuple[tuple[Mutant, list[str]], Work]]:
        for mutant in self._chosen:
            rest = sum(self._took[test] for _, tests, ran in left for test in tests[ran:])
            if time.monotonic() + rest / AT_ONCE > self._until:
                return
            tests = self._tests_of(mutant)
            yield (mutant, tests), functools.partial(self._outcome, mutant, tests, LONGEST)

    def _second_round(self, left: Left) -> Iterator[tuple[tuple[Mutant, list[str]], Work]]:
        for at, (mutant, tests, ran) in enumerate(left):
            seconds = AT_ONCE * (self._until - time.monotonic()) / (len(left) - at)
            yield (mutant, tests), functools.partial(self._outcome, mutant, tests[ran:], seconds)

    def _outcome(self, mutant: Mutant, tests: list[str], seconds: float) -> Found:
        """Change the function, and run tests until one fails, or would take more than its time."""
        path = self._sources / mutant.file
        tree = ast.parse(path.read_text(encoding="utf-8"))
        function = changed(tree, mutant.place)
        if not put_in_place(tree, function, str(path), self._functions):
            return None, "", 0
        for ran, (test, then) in enumerate(itertools.zip_longest(tests, tests[1:])):
            seconds -= self._took[test]
            if seconds < 0:
                return False, "", ran
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (int(_cpu() + 3 + 8 * self._took[test]), hard))
            try:
                if not self._passes(test, then):
                    return True, test, ran
            except Exception:  # noqa: BLE001 - what runs the tests fails: its files are closed, say
                return True, test, ran
        return False, "", len(tests)

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that come by a mutant, in the order in which they run."""
        by = {line: int(bits, 16) for line, bits in self._by.get(mutant.file, {}).items()}
        changed_lines, statement, function = mutant.lines
        bits = _any(by, changed_lines) or _any(by, statement)
        rarity: dict[str, int] = {}
        for at, test in enumerate(self._tests):
            if bits >> at & 1 and test in self._items and test in self._took:
                rarity[test] = min(
                    by[str(line)].bit_count() * (1 + abs(line - changed_lines.start)) ** 2
                    for line in function
                    if by.get(str(line), 0) >> at & 1
                )
        killers, words = self._killers[mutant.file, mutant.function], _words_of(mutant)
        spread = self._spread(rarity)
        near = sorted(spread, key=lambda test: -self._nearness(test, words))
        rare = sorted(rarity, key=lambda test: (rarity[test], self._took[test]))
        uses = self._spread(self._uses(mutant, rarity))
        places = dict[str, int]()
        for order in (spread, near, rare, uses):
            for at, test in enumerate(order):
                places[test] = min(at, places.get(test, at))
        cost = {test: (1 + places[test]) * (SHORTEST + self._took[test]) for test in spread}
        return sorted(spread, key=lambda test: (-killers[test], cost[test]))

    def _spread(self, rarity: dict[str, int]) -> list[str]:
        """Order tests: one of each file, then another of each; of a file, by rarity and time."""
        rounds, files = dict[str, int](), Counter[str]()
        for test in sorted(rarity, key=lambda test: (rarity[test], self._took[test])):
            rounds[test] = files[test.partition("::")[0]]
            files[test.partition("::")[0]] += 1
        return sorted(rounds, key=rounds.__getitem__)

    def _uses(self, mutant: Mutant, tests: Iterable[str]) -> dict[str, int]:
        """Return the tests that come by other lines about what is changed: see `places_below`.

        Returns:
            By test, how many tests come by the rarest of these lines.
        """
        if not self._places:
            self._places = places_below(self._sources)
        found: dict[str, int] = {}
        wanted, lines = set(tests), set[int]()
        for file, line in set[tuple[str, int]]().union(
            *(self._places.get(word, ()) for word in _changed_words(mutant))
        ):
            if file != mutant.file or line not in mutant.lines[2]:
                lines.add(int(self._by.get(file, {}).get(str(line), "0"), 16))
        for here in sorted(lines, key=int.bit_count):
            for at, test in enumerate(self._tests):
                if here >> at & 1 and test in wanted:
                    found.setdefault(test, here.bit_count())
        return found

    def _nearness(self, test: str, words: set[str]) -> float:
        """Return how much a test speaks of these words: the rarer a word, the more it counts."""
        if not self._texts:
            for each, item in self._items.items():
                self._texts[each] = _words(each) | _source_words(getattr(item, "function", None))
            self._spoken = Counter(word for text in self._texts.values() for word in text)
        return sum(1 / self._spoken[word] for word in words & self._texts[test])


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w+", text))


@functools.cache
def _source_words(function: Any) -> set[str]:
    try:
        return _words(inspect.getsource(function))
    except (OSError, TypeError):
        return set()


def _words_of(mutant: Mutant) -> set[str]:
    """Return the words of what is changed, and of the function's name."""
    return _changed_words(mutant) | _words(mutant.function)


def _changed_words(mutant: Mutant) -> set[str]:
    """Return the words before or after a change alone; if none, all of what is changed."""
    before, _, after = mutant.change.partition(" → ")
    return (_words(before) ^ _words(after)).difference(keyword.kwlist) or _words(before)


def _any(by: dict[str, int], lines: range) -> int:
    """Return the tests that come by any of these lines, as bits."""
    return functools.reduce(operator.or_, (by.get(str(line), 0) for line in lines), 0)


def places_below(sources: Path) -> dict[str, set[tuple[str, int]]]:
    """Return which lines are about a name: that use an attribute, or stand in a function.

    A name that many have is left out.
    """
    used, defined = defaultdict[str, set[tuple[str, int]]](set), Counter[str]()
    for path in sorted(sources.rglob("*.py")):
        file = str(path.relative_to(sources))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                used[node.attr].add((file, node.lineno))
                defined[node.attr] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0].lineno, node.end_lineno or node.lineno
                used[node.name].update((file, line) for line in range(first, last + 1))
                defined[node.name] += 1
    return {name: lines for name, lines in used.items() if defined[name] <= MANY}


def functions_below(sources: Path) -> Functions:
    """Return all functions that were made of these files."""
    for path in sorted(sources.rglob("[!_]*.py")):
        parts = path.relative_to(sources.parent).with_suffix("").parts
        importlib.import_module(".".join(parts))
    found: Functions = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            code = each.__code__
            if code.co_filename.startswith(str(sources)):
                key = code.co_filename, code.co_qualname, code.co_firstlineno
                found.setdefault(key, []).append(each)
    return found


def _in_children(work: Iterable[tuple[K, Work]]) -> Iterator[tuple[K, Any]]:
    """Do work in forked children, some at once; yield what each returned, None if it died.

    A child whose threads and processes all sleep at many looks is stuck, and is ended. That does
    not depend on the machine's load: a child that waits for a core does not sleep.

    Raises:
        RuntimeError: the work raised.
    """
    left, running, looked = iter(work), dict[int, _Child[K]](), 0.0
    while True:
        while len(running) < AT_ONCE and (job := next(left, None)) is not None:
            folder = Path(tempfile.mkdtemp(prefix="mutant-"))
            pid = os.fork()
            if pid == 0:
                _work(job[1], folder)
            running[os.pidfd_open(pid)] = _Child(job[0], pid, folder)
        if not running:
            return
        ended = select.select(running, [], [], LOOK)[0]
        if time.monotonic() - looked >= LOOK:
            looked = time.monotonic()
            for end, child in running.items():
                child.slept = child.slept + 1 if _sleeps(child.pid) else 0
                if child.slept == STUCK and end not in ended:
                    ended.append(end)
        for end in ended:
            os.close(end)
            child = running.pop(end)
            yield child.key, _found(child)


@dataclass
class _Child(Generic[K]):
    """Hold a child that runs. `slept`: at how many looks in a row all of it slept."""

    key: K
    pid: int
    folder: Path
    slept: int = 0


def _found(child: _Child[Any]) -> Any:
    """Return what a child that ended has returned, None if it died; end it if it is stuck."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # all that it has started
    os.waitpid(child.pid, 0)
    found = child.folder / _FOUND
    kind, result = json.loads(found.read_text(encoding="utf-8")) if found.exists() else _DIED
    shutil.rmtree(child.folder, ignore_errors=True)
    if kind == "raised":
        raise RuntimeError(result)
    return result


def _sleeps(pid: int) -> bool:
    """Tell whether all threads of a process, and of those that it started, wait for something."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                return False
            if not all(map(_sleeps, map(int, (task / "children").read_text().split()))):
                return False
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False
    return True


def _work(work: Work, folder: Path) -> NoReturn:
    """Do the work of a child, and leave what comes of it in a file."""
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silent, stream)
        try:
            result = ["returned", work()]
        except Exception:  # noqa: BLE001 - it is raised in the parent
            result = ["raised", traceback.format_exc()]
        unfinished = folder / "unfinished"
        unfinished.write_text(json.dumps(result), encoding="utf-8")
        unfinished.rename(folder / _FOUND)
    finally:
        os._exit(0)


def _cpu() -> float:
    """Return the seconds that this process, and those that it waited for, have computed."""
    return sum(os.times()[:4])
