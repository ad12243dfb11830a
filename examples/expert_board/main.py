"""A board of experts votes on a purchase: a workflow's team, killed in the middle, and resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollcage import list_runs, open_store, tool
from rollcage_workflow import Plan, PlanBuilder, execution, run_sync, steps

OPINIONS = {"engineer": True, "lawyer": False, "buyer": True}


@tool(effect="read")
def ask_model(role: str, question: str) -> bool:
    """Stands in for an expert's model: its opinion is scripted."""
    print(f"  the {role} is asked", flush=True)
    with Path("asked.txt").open("a", encoding="utf-8") as file:
        file.write(f"{role}\n")
    return OPINIONS[role]


@tool(effect="scope")
def expert(role: str, question: str) -> dict[str, Any]:
    """An expert: an agent of any framework could be in this body."""
    return {"role": role, "yes": ask_model(role, question)}


@tool(effect="write")
def minutes(line: str) -> None:
    """Write into the board's minutes."""
    with Path("minutes.txt").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@tool(effect="read")
def count(votes: dict[str, Any]) -> int:
    """Count who is for it; in the first process, nobody gets that far."""
    if "DIE" in os.environ:
        while votes_on_record() < len(OPINIONS):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(vote["yes"] for vote in votes.values())


def votes_on_record() -> int:
    """Count the votes that a killed process does not lose."""
    store = open_store(".rollcage")
    lines = (line for run in list_runs(store) for line in store.read(run.run))
    return sum(line.startswith(b'{"event":"outcome"') and b'"yes"' in line for line in lines)


TOOLS = [expert, ask_model, minutes, count]


def board() -> Plan:
    """Three experts at once; two of them decide, and the minutes say so."""
    experts = steps()
    for role in OPINIONS:
        experts.agent(role, expert, {"role": role, "question": "=inputs.question"})
    return (
        PlanBuilder("board", inputs={"question": {"type": "string"}})
        .team("votes", experts, mode="all")
        .call("yes", count, {"votes": "=votes"})
        .call("bought", minutes, {"line": "bought, by two of three"}, when="=yes >= 2")
        .call("declined", minutes, {"line": "declined"}, when="=yes < 2")
        .output("=yes >= 2")
        .build()
    )


def decide() -> bool:
    """The board decides; one execution has one id, however often it is started."""
    found = run_sync(board(), {"question": "Do we buy the lathe?"}, id="lathe", tools=TOOLS)
    assert found.status == "completed"
    return bool(found.output)


def start(**environment: str) -> int:
    """The board in a process of its own; how it ended."""
    command = [sys.executable, __file__, "decide"]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def main() -> None:
    """Kill it when all votes are given, start it again, and look at the votes."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            print("the first process:", flush=True)
            assert start(DIE="yes") == -signal.SIGKILL
            print("killed before the votes are counted\n\nthe second process:", flush=True)
            assert start() == 0
            assert Path("minutes.txt").read_text(encoding="utf-8") == "bought, by two of three\n"
            asked = Path("asked.txt").read_text(encoding="utf-8").split()
            assert sorted(asked) == sorted(OPINIONS)  # each once
            found = execution(open_store(".rollcage"), "lathe")
            print("  nobody is asked again\n\nthe minutes: bought, by two of three")
            assert found.status == "completed"
            assert found.output is True
        finally:
            os.chdir(home)


if __name__ == "__main__":
    if sys.argv[1:] == ["decide"]:
        assert decide()
    else:
        main()
