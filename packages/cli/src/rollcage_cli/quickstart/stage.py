"""Play the quickstart, and check the results of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rollcage import list_runs, open_store
from rollcage.trace.recorded import trace_of
from rollcage_views import Run, read_run

from rollcage_cli.demo.process import Program
from rollcage_cli.demo.showing import Show, new_folder
from rollcage_cli.errors import UsageError
from rollcage_cli.options import OFF, JsonOption
from rollcage_cli.output import console, print_json
from rollcage_cli.quickstart.frameworks import ALL, PLAIN, Framework, installed, unguarded
from rollcage_cli.quickstart.job import CUSTOMERS, OUTBOX, SETTING, YOURS, mails

__all__ = ["quickstart"]

_FOLDER: Final = Path("rollcage-quickstart")
_PROGRAM: Final = "rollcage_cli.quickstart.program"
_STORY: Final = """\
An agent reminds three customers, in ten steps. At the ninth, its process is
killed, and it is started again. What have the customers got by then?"""
_SENT: Final = dict.fromkeys(CUSTOMERS, 1)
_QUIET: Final = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TESTING": "true",
    "OTEL_SDK_DISABLED": "true",
}


def quickstart(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="A new folder for it.  [default: rollcage-quickstart]"
        ),
    ] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="langchain, autogen, crewai or python; again for more.  "
            "[default: all that are installed]",
        ),
    ] = None,
    as_json: JsonOption = OFF,
) -> None:
    """See one crash without and with Rollcage.

    An agent sends three reminders. Its process is killed at the ninth of ten steps, and started
    again: without Rollcage, each mail is sent twice; with Rollcage, none is, and `rollcage undo`
    recalls them. Models are scripted; nothing reaches the network. At the end there is a run to
    look at.
    """
    chosen = _chosen(framework or [])
    out = console(error=as_json)
    where = new_folder(folder, _FOLDER, _prepared)
    stage = _Stage(where, chosen, out)
    try:
        stage.play()
    finally:
        if as_json:
            print_json(
                {
                    "folder": str(where),
                    "store": str(where / ".rollcage"),
                    "frameworks": [each.key for each in chosen],
                    "runs": stage.runs,
                    "claims": [claim._asdict() for claim in stage.show.claims],
                }
            )


def _chosen(names: list[str]) -> list[Framework]:
    """Return the frameworks to play.

    Raises:
        UsageError: one is unknown, or not installed.
    """
    if not names:
        return installed()
    known = {each.key: each for each in (*ALL, PLAIN)}
    here = {each.key for each in (*installed(), PLAIN)}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown framework {name!r}; there are {', '.join(known)}")
        if name not in here:
            raise UsageError(
                f"{known[name].name} and its adapter are not both installed: "
                f'pip install "rollcage[{name}]"'
            )
    return [known[name] for name in dict.fromkeys(names)]


def _prepared(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(SETTING, encoding="utf-8")
    return folder


class _Stage:
    """The incidents, one after the other, and a run for the user to look at."""

    def __init__(self, folder: Path, chosen: list[Framework], out: Console) -> None:
        self.show = Show(folder, out)
        self.runs: dict[str, dict[str, str]] = {}
        self._folder = folder
        self._chosen = chosen

    def play(self) -> None:
        """Play all incidents.

        Raises:
            ClaimFailed: a process left another result than promised; the later ones don't play.
        """
        self.show.out.print(_STORY)
        for each in unguarded():
            hint = f'{each.name} is here without its adapter: pip install "rollcage[{each.key}]"'
            self.show.out.print(hint, soft_wrap=True)
        with contextlib.ExitStack() as stack:
            # All start to import now, which takes longest; each waits for its turn.
            programs = [stack.enter_context(self._program(each)) for each in self._chosen]
            for each, program in zip(self._chosen, programs, strict=True):
                incident = _Incident(self.show, self._folder, each, program)
                self.runs[each.key] = incident.runs
                incident.play()
            self._leave_one(programs[0])

    @contextlib.contextmanager
    def _program(self, framework: Framework) -> Generator[Program]:
        """Return the process that plays a framework's agents; its other output goes to a file."""
        own = _QUIET | {"XDG_DATA_HOME": str(self._folder.resolve() / "crewai")}
        log = self._folder / f"{framework.key}.log"
        with (
            log.open("wb") as errors,
            Program(_PROGRAM, framework.key, errors=errors, cwd=self._folder, more=own) as program,
        ):
            yield program

    def _leave_one(self, program: Program) -> None:
        """Leave a run with its mails, and print commands to look at it."""
        self.show.title("Your turn: one more run, whose mails are not recalled.")
        program.enter(YOURS)
        outbox = self._folder / OUTBOX
        sent = program.wait() == 0 and mails(outbox) == _SENT
        self.show.claim(f"3 mails are in {outbox}", sent)
        self.show.check()
        there = " --store .rollcage" if "ROLLCAGE_STORE" in os.environ else ""
        asks = ["jobs", f"show @{self._chosen[0].job}", f"show @{YOURS}", f"undo @{YOURS}"]
        commands = [f"rollcage {ask}{there}" for ask in asks]
        self.show.farewell("Type:", [f"cd {self._folder}", *commands])


class _Incident:
    """The incident in one framework."""

    def __init__(self, show: Show, folder: Path, framework: Framework, program: Program) -> None:
        self.runs: dict[str, str] = {}
        self._show = show
        self._folder = folder
        self._framework = framework
        self._program = program
        self._store = open_store(folder / ".rollcage")

    def play(self) -> None:
        """Play it without Rollcage, with Rollcage, and undo it.

        Raises:
            ClaimFailed: the result is another one.
        """
        self._show.title(self._framework.title)
        self._show.out.print("  without Rollcage: killed, and started again")
        ended = self._killed_and_again("without")
        there = mails(self._folder / "without" / self._framework.key)
        text = f"it sent {sum(there.values())} mails: each customer got 2"
        self._show.claim(text, ended and there == dict.fromkeys(CUSTOMERS, 2))
        self._show.check()
        self._show.out.print("  with Rollcage: killed, and started again")
        ended = self._killed_and_again("with")
        self._read(ended=ended)
        self._show.check()
        self._undo()
        self._show.check()

    def _killed_and_again(self, act: str) -> bool:
        """Return whether the first process was killed, and the second one finished."""
        self._program.enter(f"{act}-dies")
        killed = self._program.wait() == -signal.SIGKILL
        self._program.enter(act)
        return self._program.wait() == 0 and killed

    def _read(self, *, ended: bool) -> None:
        """Check the attempts of the run, and the outbox."""
        infos = list_runs(self._store, name=self._framework.job)
        runs = [self._run(info.run) for info in reversed(infos)]
        if runs:
            self.runs["run"] = runs[-1].id
        attempts = [
            (sum(last - first + 1 for first, last in each.replayed), len(each.steps))
            for run in runs
            for each in run.attempts
        ]
        self._show.claim(
            "the second process replayed 8 steps and ran 2",
            ended and len(runs) == 1 and attempts == [(0, 8), (8, 2)],
        )
        there = mails(self._folder / OUTBOX)
        text = f"{sum(there.values())} mails are out: each customer got 1"
        self._show.claim(text, there == _SENT)

    def _run(self, run: str) -> Run:
        return read_run(trace_of(self._store, run))

    def _undo(self) -> None:
        """Recall the mails, in a process that knows only the run's name."""
        code = self._show.command("undo", f"@{self._framework.job}", "--yes", quiet=True)
        rows = self._run(self.runs["run"]).steps
        ends = [row.undone for row in rows if row.name == "send" and row.undoes is None]
        text = f"{ends.count('verified')} mails were recalled, and each undo was verified"
        self._show.claim(text, code == 0 and ends == ["verified"] * len(CUSTOMERS))
        self._show.claim("the outbox is empty", not mails(self._folder / OUTBOX))
