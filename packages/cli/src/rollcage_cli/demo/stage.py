"""Play the demo: start the agent's processes, show their traces, and check them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text
from rollcage import list_runs, open_store
from rollcage.trace.recorded import trace_of
from rollcage_views import RefusedCall, Run, Step, outcome_text, read_run

from rollcage_cli.demo.job import (
    NAME_DRIFT,
    NAME_ESCAPE,
    NAME_MISSING,
    NAME_REPORT,
    NAME_WRECK,
    WRECK,
    Scene,
    prepare,
)
from rollcage_cli.demo.process import Program
from rollcage_cli.demo.showing import Show, new_folder
from rollcage_cli.demo.tools import SETTING
from rollcage_cli.errors import ClaimFailed, DemoUnavailable
from rollcage_cli.options import OFF, JsonOption
from rollcage_cli.output import arguments_text, console, print_json, visible
from rollcage_cli.show import styled_state
from rollcage_cli.verify import verify_log

__all__ = ["NEEDED", "demo", "folder_for"]

NEEDED: Final = (
    "langchain", "langchain_community", "rollcage_langchain", "rollcage_toolbox", "sqlalchemy",
)  # fmt: skip
"""The imported modules of the extra `rollcage[demo]`."""
_AGENT: Final = "rollcage_cli.demo.agent"
_FOLDER: Final = Path("rollcage-demo")
_EDIT: Final = (b"120.50", b"920.50")  # an edit of a recorded value


def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="A new folder for it.  [default: rollcage-demo]"),
    ] = None,
    as_json: JsonOption = OFF,
) -> None:
    """See it work: an agent crashes, is resumed, and is undone.

    Ten steps of a LangChain agent with real tools and a scripted model, offline: it dies at the
    ninth, and a second process replays eight and continues. Then a blocked call, an output that
    breaks its contract, a call without one of its arguments, an edited trace, and an agent that
    wrecks its folder and its database: `rollcage undo` restores both.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise DemoUnavailable('the demo needs LangChain: pip install "rollcage[demo]"')
    scene = folder_for(folder)
    stage = _Stage(scene, console(error=as_json))
    try:
        stage.play()
    finally:
        if as_json:
            claims = [claim._asdict() for claim in stage.show.claims]
            where = {"folder": str(scene.folder), "store": str(scene.store)}
            print_json({**where, "runs": stage.runs, "claims": claims})


def folder_for(folder: Path | None) -> Scene:
    """Make the folder and its contents.

    Raises:
        DemoUnavailable: the folder exists, or can't be made.
    """
    return new_folder(folder, _FOLDER, prepare)


class _Stage:
    """The seven acts, shown as they happen."""

    def __init__(self, scene: Scene, out: Console) -> None:
        self.show = Show(scene.folder, out)
        self.runs: dict[str, str] = {}
        self._scene = scene
        self._out = out
        self._store = open_store(scene.store)
        self._known: dict[str, int] = {}  # by run, the number of its attempts

    def play(self) -> None:
        """Play all acts.

        Raises:
            ClaimFailed: an act does not show the promised result; the later ones are not played.
        """
        with self._agent() as agent:
            self._enter(agent, "slip")
            self._crash(agent)
            self.show.check()
            self._enter(agent, "resume", "escape")
            self._resume(agent)
            self.show.check()
            self._escape(agent)
            self.show.check()
            self._enter(agent, "drift")
            self._drift(agent)
            self.show.check()
            self._enter(agent, "missing")
            self._missing(agent)
            self.show.check()
            self._edit()
            self.show.check()
            before = self._digests()
            self._enter(agent, "wreck")
            self._wreck(agent, before)
            self.show.check()
        self._undo(before)
        self.show.check()
        self._farewell()

    # --- the acts --------------------------------------------------------------------------------

    def _crash(self, agent: Program) -> None:
        self.show.title(
            "1. An agent has ten steps to do. Its model gets the ninth one's path wrong."
        )
        agent.act(self._teller("crashed", NAME_REPORT))
        seen = self._view("crashed", agent)
        states = [row.state for row in seen.steps]
        self.show.claim("eight steps ran", states[:8] == ["ran"] * 8)
        self.show.claim("the ninth failed", states[8:] == ["failed"])
        code = agent.wait()
        self.show.claim(f"the process ended, with exit code {code}", code != 0)

    def _resume(self, agent: Program) -> None:
        self.show.title("2. The same program again, in a new process.")
        agent.act(self._teller("resumed", NAME_REPORT))
        seen = self._view("resumed", agent)
        hits = sum(last - first + 1 for first, last in seen.attempts[-1].replayed)
        states = [row.state for row in seen.steps if row.attempt == len(seen.attempts)]
        self.show.claim(f"{hits} steps were replayed: nothing ran", hits == 8)
        self.show.claim("the ninth and the tenth ran", states == ["ran", "ran"])
        self.show.claim(f"the run ended: {seen.status}", seen.status == "ok")
        orders = self._scene.orders()
        self.show.claim(f"the database holds {orders} orders: none was written twice", orders == 3)
        lines = (self._scene.workspace / "log.txt").read_text(encoding="utf-8").count("\n")
        self.show.claim(f"the log has {lines} line", lines == 1)
        sent = (self._scene.workspace / "outbox" / "report.md").is_file()
        self.show.claim("the report is in the outbox", sent)

    def _escape(self, agent: Program) -> None:
        self.show.title(
            "3. An agent wants to read a file outside of its workspace. A rule denies it."
        )
        answer = agent.act(self._teller("blocked", NAME_ESCAPE))
        seen = self._view("blocked", agent)
        denied = [row.verdict or {} for row in seen.refused]
        codes = [verdict.get("code") for verdict in denied]
        reason = str(denied[-1]["reason"]) if denied else ""
        for row in seen.refused:
            self._tell_refused(row, "blocked", "red")
        self.show.claim("the call was blocked: the tool did not run", codes == ["path_escape"])
        self.show.claim(f"the model read why: {visible(reason)}", bool(reason) and reason in answer)
        self.show.claim("the agent went on to its end", agent.wait() == 0 and seen.status == "ok")

    def _drift(self, agent: Program) -> None:
        self.show.title("4. A service changes: a tool that declares a number gives a text.")
        agent.act(self._teller("drifted", NAME_DRIFT))
        rows = self._view("drifted", agent).steps
        drift: dict[str, Any] = (rows[0].outcome or {}).get("drift", {}) if rows else {}
        code, path = drift.get("code"), drift.get("path")
        self.show.claim(f"the drift is in the trace: {code} at {path}", code == "output_wrong_type")
        self.show.claim("the agent did not get the value", agent.wait() != 0)

    def _missing(self, agent: Program) -> None:
        self.show.title("5. The model forgets an argument of a call.")
        answer = agent.act(self._teller("corrected", NAME_MISSING))
        seen = self._view("corrected", agent)
        for row in seen.refused:
            self._tell_refused(row, "refused", "magenta")
        reasons = [row.reason for row in seen.refused]
        self.show.claim(
            f"nothing ran, and the trace says why: {visible(''.join(reasons))}",
            len(reasons) == 1 and "to: Field required" in reasons[0],
        )
        sent = [row.state for row in seen.steps] == ["ran"] and "sent to ann@" in answer
        self.show.claim("the model read that, and its second call ran", sent and agent.wait() == 0)

    def _edit(self) -> None:
        self.show.title(
            "6. Somebody edits the record: one digit, in a copy of the first run's trace."
        )
        run = self.runs["crashed"]
        found = verify_log(trace_of(self._store, run), self._store)
        self.show.claim(f"verify finds the run whole: {found.lines} lines", found.ok)
        shutil.copytree(self._scene.store, self._scene.edited)
        edited = open_store(self._scene.edited)
        path = self._scene.edited / "logs" / f"{run}.jsonl"
        before = path.read_bytes()
        line = before[: before.index(_EDIT[0])].count(b"\n") + 1
        path.write_bytes(before.replace(*_EDIT, 1))
        findings = verify_log(trace_of(edited, run), edited).findings
        message = f"line {findings[0].line}: {findings[0].message}" if findings else "nothing"
        self.show.claim(
            f"in the copy it finds {visible(message)}", [f.line for f in findings] == [line]
        )

    def _wreck(self, agent: Program, before: dict[str, str]) -> None:
        self.show.title(
            "7. An agent cleans up: it wrecks its folder and its database. Then it is undone."
        )
        agent.act(self._teller("wrecked", NAME_WRECK))
        states = [row.state for row in self._view("wrecked", agent).steps]
        self.show.claim(f"{len(states)} writes ran", states == ["ran"] * len(WRECK))
        self.show.claim("the agent is gone", agent.wait() == 0)
        for what, now in self._digests().items():
            message = f"the {what} is wrecked: {before[what][:16]}… became {now[:16]}…"
            self.show.claim(message, now != before[what])

    def _undo(self, before: dict[str, str]) -> None:
        """Undo, in a process that knows only the run's id."""
        run = self.runs["wrecked"]
        (self._scene.folder / "pyproject.toml").write_text(SETTING, encoding="utf-8")
        code = self.show.command("undo", run[-12:], "--yes")
        rows = self._run(run).steps
        ends = [row.undone for row in rows if row.undoes is None]
        self.show.claim(
            f"{ends.count('verified')} effects were undone, and each was verified",
            code == 0 and ends == ["verified"] * len(WRECK),
        )
        for what, now in self._digests().items():
            self.show.claim(f"the {what} is as it was: {now[:16]}…", now == before[what])

    def _digests(self) -> dict[str, str]:
        """Return the digests of the folder and the database, computed by the demo itself."""
        scene = self._scene
        return {"folder": scene.folder_digest(), "database": scene.database_digest()}

    # --- the processes' traces -------------------------------------------------------------------

    @contextlib.contextmanager
    def _agent(self) -> Generator[Program]:
        """Return the running agent's program."""
        log = self._scene.folder / "agent.log"
        folder = str(self._scene.folder)
        with log.open("wb") as errors, Program(_AGENT, folder, errors=errors) as agent:
            yield agent

    def _enter(self, agent: Program, *acts: str) -> None:
        """Play these acts in a new process; it makes runs, or attempts at existing ones."""
        runs = [self._run(info.run) for info in list_runs(self._store)]
        self._known = {run.id: len(run.attempts) for run in runs}
        agent.enter(*acts)

    def _teller(self, role: str, name: str) -> Callable[[], None]:
        """Return a function that shows a job's new attempt, each step once, as it ends."""
        shown: set[int] = set()

        def tell() -> None:
            for info in list_runs(self._store):
                run = self._run(info.run) if info.name == name else None
                if run is None or len(run.attempts) == self._known.get(run.id, 0):
                    continue
                self.runs[role] = run.id
                hits = run.attempts[-1].answers
                for row in run.steps:
                    is_new = row.attempt == len(run.attempts)
                    ended = row.state not in {"cut_off", "unknown"}
                    if row.step not in shown and (row.step in hits or (is_new and ended)):
                        shown.add(row.step)
                        self._tell_step(row, is_hit=row.step in hits)

        return tell

    def _view(self, role: str, agent: Program) -> Run:
        if role not in self.runs:
            agent.wait()
            raise ClaimFailed(f"the agent left no run; its messages are in {self._scene.folder}")
        return self._run(self.runs[role])

    def _run(self, run: str) -> Run:
        return read_run(trace_of(self._store, run))

    # --- the output ------------------------------------------------------------------------------

    def _tell_step(self, row: Step, *, is_hit: bool) -> None:
        text = Text(f"{row.step:>5}  ")
        state = Text("hit", style="cyan") if is_hit else styled_state(row)
        text.append(state).append(" " * (9 - len(state)))
        text.append(f"{visible(row.name)}({arguments_text(row.args)})")
        if row.state in ("failed", "blocked") or "drift" in (row.outcome or {}):
            text.append(f" → {outcome_text(row)}", style="red")
        text.truncate(self._out.width, overflow="ellipsis")
        self._out.print(text)

    def _tell_refused(self, row: RefusedCall, state: str, style: str) -> None:
        asked = f"{visible(row.name)}({arguments_text(row.args)})"
        self._out.print(Text(f"       {state}  {asked}", style=style))

    def _farewell(self) -> None:
        store, run = self._scene.store, self.runs
        commands = [
            f"rollcage runs --store {store}",
            f"rollcage show {run['resumed'][-12:]} --store {store}",
            f"rollcage show {run['blocked'][-12:]} --store {store}",
            f"rollcage show {run['drifted'][-12:]} --store {store}",
            f"rollcage show {run['corrected'][-12:]} --store {store}",
            f"rollcage verify {run['crashed'][-12:]} --store {self._scene.edited}",
            f"rollcage show {run['wrecked'][-12:]} --store {store}",
        ]
        self.show.farewell("See the traces:", commands)
