"""The text that is approved for a function is that of the code which runs, or says it is not."""

import functools
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage_governance.source import code_of

MODULE = '''\
"""A module."""
import functools


def other(x):
    return 0


def wrapper(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner


@wrapper
def wrapped(x):

    # Add one.
    return x + 1  \t

class Made:
    def method(self, x):
        return x

    def __call__(self, x):
        return x * 2


def make(n):
    def made(x):
        return x + n
    return made


made = make(3)
twice = lambda x: x * 2
words = lambda x: x in {"a", "b", "c"}
'''


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Import a module from its text; the same file each time."""
    # Python would take the bytecode of a former text of the same second and length.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def loaded(text: str = MODULE) -> Any:
        path = tmp_path / "some_module.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("some_module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded


def test_the_source_without_what_says_nothing(load: Any) -> None:
    module = load()
    assert code_of(module.other).text == "def other(x):\n    return 0\n"
    assert code_of(module.twice).text == "twice = lambda x: x * 2\n"
    assert code_of(module.made).text == "def made(x):\n    return x + n\n"


def test_what_a_wrapper_wraps_is_part_of_it(load: Any) -> None:
    module = load()
    code = code_of(module.wrapped)
    assert [function.__name__ for function, _ in code.parts] == ["wrapped", "wrapped"]
    assert code.text == (
        "@functools.wraps(function)\ndef inner(*args):\n    return function(*args)\n\n"
        "@wrapper\ndef wrapped(x):\n    # Add one.\n    return x + 1\n"
    )


def test_whatever_can_be_called(load: Any) -> None:
    module = load()
    assert code_of(module.Made().method).text == "def method(self, x):\n    return x\n"
    assert code_of(module.Made()).text == "def __call__(self, x):\n    return x * 2\n"
    assert code_of(functools.partial(module.other, 1)).text == "def other(x):\n    return 0\n"
    assert code_of(len).text == ""
    assert code_of(None).text == ""


def test_a_wrapper_that_wraps_itself(load: Any) -> None:
    function = load().other
    function.__wrapped__ = function
    assert code_of(function).text.startswith("def other(x):\n")


def test_a_file_that_was_edited_since_says_nothing_of_what_runs(load: Any, tmp_path: Path) -> None:
    function = load().other
    path = tmp_path / "some_module.py"
    path.write_text(MODULE.replace("return 0", "return 1"))
    stamp = time.time_ns() + 10**9
    os.utime(path, ns=(stamp, stamp))
    text = code_of(function).text
    assert text.startswith("# other: no source; its bytecode (Python ")
    assert code_of(load(MODULE.replace("return 0", "return 1")).other).text != text


def test_code_that_was_replaced_is_not_told_as_what_its_file_says(load: Any) -> None:
    module = load()
    namespace: dict[str, Any] = {}
    exec(compile("\n\n\n\ndef other(x):\n    return 666\n", module.__file__, "exec"), namespace)  # noqa: S102 - as somebody may
    module.other.__code__ = namespace["other"].__code__
    assert "no source" in code_of(module.other).text
    module.other.__code__ = module.twice.__code__
    assert code_of(module.other).text == "twice = lambda x: x * 2\n"


@pytest.mark.parametrize("text", ["def broken(:", "x = '\0'", ""])
def test_a_file_that_is_no_module_any_more(load: Any, tmp_path: Path, text: str) -> None:
    function = load().other
    (tmp_path / "some_module.py").write_text(text)
    assert "no source" in code_of(function).text


def test_code_without_a_file_has_a_name_of_its_own() -> None:
    def made(text: str) -> str:
        namespace: dict[str, Any] = {}
        exec(text, namespace)  # noqa: S102 - as a notebook or a generator of tools does
        return code_of(namespace["f"]).text

    one = made("def f(x): return x in {'a', 'b', 'c'}")
    assert one == made("def f(x): return x in {'a', 'b', 'c'}")
    assert one != made("def f(x): return x in {'a', 'b', 'd'}")
    assert one != made("def f(x, y=1): return x in {'a', 'b', 'c'}")
    assert made("def f(x):\n def g(): return 1\n return g") != made(
        "def f(x):\n def g(): return 2\n return g"
    )


def test_that_name_is_the_same_in_every_process() -> None:
    program = (
        "from rollcage_governance.source import code_of\n"
        "names = {}\n"
        'exec(\'def f(x): return x in {"a", "b", "c", "d"}\', names)\n'
        "print(code_of(names['f']).text)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
