"""Measure, print the table and write the JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import mcp, server, stores, workers, workflow
from benchmarks.cases import Plan
from benchmarks.report import as_data, table, targets
from benchmarks.runner import Runner


def main() -> None:
    """Measure what the command line asks for. A slow result is printed, and is not a failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, under a minute")
    parser.add_argument("--stores", action="store_true", help="the stores beside each other, alone")
    parser.add_argument("--workflow", action="store_true", help="workflows beside others, alone")
    parser.add_argument("--workers", action="store_true", help="workers beside DBOS, alone")
    parser.add_argument("--mcp", action="store_true", help="the MCP proxy beside others, alone")
    parser.add_argument("--server", action="store_true", help="pages and live viewers, alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it there too")
    parser.add_argument("--calls", type=int, nargs="+", metavar="N", help="calls a case")
    parser.add_argument("--peer-calls", type=int, metavar="N", help="calls a peer")
    parser.add_argument("--frameworks", nargs="+", choices=Plan.frameworks, help="whose agents")
    parser.add_argument(
        "--agent-calls", type=int, metavar="N", help="calls of a framework's agents"
    )
    parser.add_argument("--open-steps", type=int, metavar="N", help="steps of the opened source")
    parser.add_argument(
        "--undo-steps", type=int, nargs="+", metavar="N", help="steps of the runs that are undone"
    )
    parser.add_argument("--decisions", type=int, metavar="N", help="decisions a policy")
    parser.add_argument("--rounds", type=int, metavar="N", help="processes a case")
    parser.add_argument("--import-rounds", type=int, metavar="N", help="processes an import")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="a folder on the disk to measure (here)"
    )
    asked = parser.parse_args()
    if asked.stores:
        stores.main(quick=asked.quick, to=asked.json)
        return
    if asked.workflow:
        workflow.main(quick=asked.quick, to=asked.json)
        return
    if asked.workers:
        workers.main(quick=asked.quick, to=asked.json)
        return
    if asked.server:
        server.main(quick=asked.quick, to=asked.json)
        return
    if asked.mcp:
        mcp.main(quick=asked.quick, to=asked.json, at=asked.dir)
        return
    given = {
        "sizes": asked.calls and sorted(asked.calls),
        "peer_calls": asked.peer_calls,
        "frameworks": asked.frameworks,
        "agent_rounds": asked.rounds,
        "agent_calls": asked.agent_calls,
        "open_steps": asked.open_steps,
        "undo_steps": asked.undo_steps and sorted(asked.undo_steps),
        "decisions": asked.decisions,
        "rounds": asked.rounds,
        "import_rounds": asked.import_rounds,
    }
    plan = Plan.quick() if asked.quick else Plan()
    plan = dataclasses.replace(plan, **{name: n for name, n in given.items() if n})
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.dir.resolve()) as folder:
        series = Runner(plan, Path(folder), _tell).run()
    reached = targets(series)
    print(table(series, reached))
    if asked.json is not None:
        data = as_data(plan, series, reached)
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _tell(what: str) -> None:
    print(what, file=sys.stderr)


if __name__ == "__main__":
    main()
