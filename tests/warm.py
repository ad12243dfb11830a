"""Run Python scripts in processes that have the large libraries in memory already.

To import the libraries of all frameworks takes five seconds, which is most of the time of a small
script. Here one process imports them and forks a fresh child for each script. A child ends as any
process does, and no other child sees what it changed. A script finds what it would find in a
process of its own, with two exceptions: libraries that it has not imported are in `sys.modules`,
and all scripts have one hash seed. Nothing of Rollcage is imported before the script is.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# They start no threads and leave the environment alone. CrewAI itself starts one, so only libraries
# that it imports are here.
LIBRARIES = (
    "autogen_agentchat.agents",
    "chromadb",
    "fastapi",
    "jinja2",
    "langchain.agents",
    "mcp.server",
    "openai",
    "rich.console",
    "sqlalchemy",
    "typer",
)


class Warm:
    """A process that has the libraries in memory; it starts with the first script."""

    def __init__(self, environment: dict[str, str]) -> None:
        # Else NumPy's algebra starts threads, and a process that has several must not be forked.
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}
        self._process: subprocess.Popen[str] | None = None

    def run(self, *argv: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a script in a folder, without input; its stdout and stderr are one pipe."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # a pipe from the beginning, as it is for each child
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd)}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer.startswith("["):
            self._process.kill()
            raise AssertionError(answer + self._process.stdout.read())
        code, printed = json.loads(answer)
        return subprocess.CompletedProcess(argv, code, printed)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def forked() -> dict[str, Any] | None:
    """Fork a child for each line of stdin, and answer with its exit code and what it printed.

    Returns the line in the child, and None at the end of stdin.
    """
    for line in sys.stdin:
        printed, end = os.pipe()
        child = os.fork()
        if child == 0:
            nothing = os.open(os.devnull, os.O_RDONLY)
            for there, here in ((nothing, 0), (end, 1), (end, 2)):
                os.dup2(there, here)
            os.closerange(3, max(nothing, end) + 1)
            return dict(json.loads(line))
        os.close(end)
        with os.fdopen(printed, encoding="utf-8") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)
    return None


def run(argv: list[str], cwd: str) -> None:
    """Run a script as Python does if it is named on the command line."""
    os.chdir(cwd)
    path = Path(argv[0]).resolve()
    sys.argv, sys.path[0] = argv, str(path.parent)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    code = 0

    def end() -> None:
        """End before Python takes all modules apart: that takes longer than most scripts do."""
        sys.stdout.flush()
        os._exit(code)

    atexit.register(end)  # first, so it is called last
    try:
        compiled = compile(path.read_bytes(), path, "exec", dont_inherit=True)
        exec(compiled, vars(main))  # noqa: S102 - the tests' own scripts
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:  # noqa: BLE001 - printed, as Python does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1


if __name__ == "__main__":
    for library in LIBRARIES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(library)
    gc.collect()
    gc.freeze()  # no collection in a child looks at, and so copies, what is here
    script = forked()
    if script is not None:
        run(**script)
