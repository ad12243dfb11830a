"""A crew with a server's tools, killed at any moment.

`python killed_mcp.py FOLDER N`: in N jobs, below that folder.
"""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from killing import SCRIPT, command, contracts, store, survives
from mcp import StdioServerParameters
from rollcage import Session
from rollcage_crewai import guard_crew, guard_model, mcp_tools

Lab: Any = importlib.import_module("conftest").Lab  # which is beside this program
with warnings.catch_warnings():  # it imports what CrewAI has deprecated itself
    warnings.simplefilter("ignore")
    import crewai_tools  # noqa: F401 - once, before a process is forked off


def work(job: Path) -> None:
    """Go on."""
    lab = Lab(job / "unused")
    program, *words = command(job)
    server = StdioServerParameters(command=program, args=words)
    with (
        Session("job", store=store(job), replay="continue") as session,
        mcp_tools(server, session, contracts=contracts(job)) as tools,
    ):
        agent = lab.agent(guard_model(lab.model(*SCRIPT), session), *tools)
        ended = lab.kickoff(guard_crew(lab.crew(agent), session))
    assert ended.raw == "done", ended


if __name__ == "__main__":
    survives(work, Path(sys.argv[1]), int(sys.argv[2]))
