"""A script in a warm process finds and leaves what it would in a process of its own."""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.warm import Warm

Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    made = Warm({**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": ""})
    yield made
    made.end()


@pytest.fixture
def run(warm: Warm, tmp_path: Path) -> Run:
    """Run the text of a script, which is written to a folder below."""

    def run(text: str, *arguments: str) -> CompletedProcess[str]:
        (tmp_path / "below").mkdir(exist_ok=True)
        (tmp_path / "below/script.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return warm.run("below/script.py", *arguments, cwd=tmp_path)

    return run


def test_it_is_the_main_module_of_its_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/beside.py").write_text("print('beside')")
    text = """
        import os, sys, beside
        print(__name__, __file__, sys.argv, os.getcwd(), sys.modules["__main__"].os is os)
    """
    path = tmp_path / "below/script.py"
    said = f"beside\n__main__ {path} ['below/script.py', '--a', 'b'] {tmp_path} True\n"
    assert run(text, "--a", "b").stdout == said


@pytest.mark.parametrize(
    ("text", "code", "printed"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit('a message')", 1, "a message\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import sys; print(1, flush=True); print(2, file=sys.stderr); print(3)", 0, "1\n2\n3\n"),
        ("import os; os.system('echo of another process')", 0, "of another process\n"),
        ("import sys; print(repr(sys.stdin.read()))", 0, "''\n"),
        ("import warnings; warnings.warn('it is old')", 1, "UserWarning: it is old\n"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end\n"),
        (
            "import threading; threading.Timer(0.1, lambda: print('in a thread')).start()",
            0,
            "in a thread\n",
        ),
    ],
)
def test_it_ends_as_any_process(run: Run, text: str, code: int, printed: str) -> None:
    ended = run(text)
    assert ended.returncode == code
    assert ended.stdout.endswith(printed)
    assert bool(ended.stdout) == bool(printed)


def test_no_script_sees_what_another_one_changed(run: Run) -> None:
    changes = """
        import builtins, os, random, sys, typer, warnings
        os.environ["LEFT"] = builtins.left = typer.left = "left"
        sys.path.append("left")
        os.chdir("/")
        warnings.simplefilter("ignore")
        random.seed(1)
        open("/dev/null")  # which stays open
    """
    looks = """
        import builtins, os, random, sys, typer, warnings
        print(os.environ.get("LEFT"), hasattr(builtins, "left"), hasattr(typer, "left"))
        print("left" in sys.path, os.getcwd(), warnings.filters, os.listdir("/dev/fd"))
    """
    before = run(looks)
    assert before.returncode == 0
    assert run(changes).returncode == 0
    assert run(looks).stdout == before.stdout


def test_no_two_scripts_draw_the_same_numbers(run: Run) -> None:
    text = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert run(text).stdout != run(text).stdout


def test_the_process_has_one_thread_and_nothing_of_rollcage(run: Run) -> None:
    text = """
        import os, sys, threading
        print(threading.active_count(), [name for name in sys.modules if "rollcage" in name])
    """
    assert run(text).stdout == "1 []\n"
