"""What a mutant is, and that a run of them says which were found: see `tests/mutation`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import SOURCES, known
from tests.mutation.mutants import mutants, sample


def changes(body: str) -> list[str]:
    """Return the changes of a function with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return [each.change for each in mutants("a.py", ast.parse(f"def f(x, y):\n{lines}"))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x < y", ["return None", "return x <= y", "return x >= y"]),
        ("return x is not y", ["return None", "return x is y"]),
        ("y = x and y", ["y = x or y"]),
        ("y = not x", ["y = x"]),
        ("y = x + 2", ["y = x - 2", "y = x + 3", "y = x + 1"]),
        ("y = [True, 'a', 0]", ["y = [False, 'a', 0]", "y = [True, '', 0]", "y = [True, 'a', 1]"]),
        ("if x: f(x)", ["not x", "pass"]),
        ("x.a = y", ["pass"]),
        ("x += y", ["x -= y", "pass"]),
        ("for x in y: continue", ["break"]),
        ("y = f(x, a=x, b=y)", ["y = f(x, b=y)", "y = f(x, a=x)"]),
        ("try: y = x\nexcept KeyError: y = x", ["except ():"]),
    ],
)
def test_one_thing_is_changed_at_a_time(body: str, expected: list[str]) -> None:
    assert [each.partition(" → ")[2] for each in changes(body)] == expected


@pytest.mark.parametrize(
    "body",
    [
        "'Return x.'",
        "raise ValueError(f'no {x}', 'x')",
        "y = 'two words'",
        "assert x is not None",
        "_log.info('x', exc_info=True)",
        "y: Literal['a'] = x",
        "x.y: Literal['a']",
        "def keys(limit=1000):\n    'Return keys.'",
        "def keys(limit=1000): ...",
    ],
)
def test_what_is_for_people_and_for_type_checkers_stays(body: str) -> None:
    assert changes(body) == []


def test_defaults_and_inner_functions_are_changed_and_nothing_outside_of_functions() -> None:
    source = "A = 1\nclass B:\n    b = 1\n    def f(self, x=1):\n        return lambda: x is self\n"
    found = [(each.function, each.change) for each in mutants("a.py", ast.parse(source))]
    assert found == [
        ("B.f", "self, x=1 → self, x=2"),
        ("B.f", "self, x=1 → self, x=0"),
        ("B.f", "return lambda: x is self → return None"),
        ("B.f", "return lambda: x is self → return lambda: x is not self"),
    ]


def test_each_beginning_of_a_sample_has_its_share_of_every_file() -> None:
    body = "def f(x):\n" + "    x.a = x\n" * 10
    every = [
        each
        for file, part in (("a.py", body), ("b.py", f"{body}{body.partition(':')[2]}"))
        for each in mutants(file, ast.parse(part))
    ]
    for seed in range(20):
        beginning = [each.file for each in sample(every, seed)[:15]]
        assert beginning.count("b.py") in (9, 10, 11)
    assert sample(every, 1) == sample(every, 1) != sample(every, 2)


def test_survivors_that_are_known_have_a_reason_and_a_place() -> None:
    assert [key for key, each in known().items() if not each["why"]] == []
    assert [file for file, *_ in known() if not (SOURCES / file).is_file()] == []


SOURCE = """
def half(x, by=2):
    while x > 100:
        x -= 1
    return x // by

def untested(x):
    return x + 1

class Number:
    def of(self, x):
        self.x = x

class Half(Number):
    def of(self, x):
        super().of(x)
"""
TESTS = """
from made.numbers import Half, half

def test_half():
    assert half(102) == 50

def test_of():
    number = Half()
    number.of(4)
    assert number.x == 4

def test_that_fails():
    assert half(2) == 0
"""
SCRIPT = """
import ast, sys, pytest
from pathlib import Path
from tests.mutation import bed
from tests.mutation.mutants import mutants

root = Path(sys.argv[1])
every = mutants("numbers.py", ast.parse((root / "made/numbers.py").read_text()))
chosen = [each for each in every if "x -= 1 → x" not in each.change]
bed.LONGEST = float(sys.argv[2])
plugin = bed.Bed(root / "made", chosen, float("inf"), root / "lines.json")
pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", str(root)], plugins=[plugin])
for tried in plugin.tried:
    print("tried:", tried.mutant.change, tried.killed, tried.test.partition("::")[2])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("longest", [20, -1], ids=["in the first round", "in the second one"])
def test_a_mutant_is_killed_by_a_test_that_passes_without_it(tmp_path: Path, longest: int) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "numbers.py").write_text(SOURCE)
    (tmp_path / "test_half.py").write_text(TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}){SCRIPT}",
            tmp_path,
            str(longest),
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    tried = {line[7:] for line in done.stdout.splitlines() if line.startswith("tried:")}
    assert tried == {
        "x, by=2 → x, by=3 True test_half",
        "x, by=2 → x, by=1 True test_half",
        "x > 100 → x >= 100 True test_half",
        "x > 100 → x <= 100 True test_half",
        "x > 100 → x > 101 False ",  # it is halved to the same
        "x > 100 → x > 99 True test_half",
        "x -= 1 → pass True ",  # it never ends
        "return x // by → return None True test_half",
        "return x // by → return x * by True test_half",
        "self.x = x → pass True test_of",
        "super().of(x) → pass True test_of",
        "return x + 1 → return None False ",
        "return x + 1 → return x - 1 False ",
        "return x + 1 → return x + 2 False ",
        "return x + 1 → return x + 0 False ",
    }, done.stdout
