"""Rollback chaos: runs in one transaction each, half of which fail somewhere.

A failed run must leave what was there before, a clean one what the model says: by what the harness
itself finds, whatever any report says.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import multiprocessing
import random
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from rollcage import Session

from tests.chaos import service
from tests.chaos.agent import Agent, calls_of, drawn_fault
from tests.chaos.faults import Fault, Ledger, lines_of, watch
from tests.chaos.place import Place
from tests.chaos.work import Part, Planner


@dataclasses.dataclass
class Ended:
    """What came of one run."""

    number: int
    fault: str  # when and at which tool; empty: it ran clean
    wrong: str  # a violation
    tools: dict[str, int]
    undone: dict[str, int]  # by status


def rollback(*, runs: int, at_once: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Do it; the figures, and the violations."""
    began = time.monotonic()
    with service.serving() as port, tempfile.TemporaryDirectory(prefix="chaos") as folder:
        orders = [(number, seed, port, folder) for number in range(runs)]
        with multiprocessing.get_context("fork").Pool(at_once) as pool:
            ended = list(pool.imap_unordered(_run, orders))
    faults = [each for each in ended if each.fault]
    tools: collections.Counter[str] = collections.Counter()
    undone: collections.Counter[str] = collections.Counter()
    injected: collections.Counter[str] = collections.Counter()
    for each in ended:
        tools.update(each.tools)
        undone.update(each.undone)
        if each.fault:
            injected[each.fault] += 1
    clean = [each for each in ended if not each.fault]
    figures = {
        "runs": len(ended),
        "at once": at_once,
        "seed": seed,
        "injected": len(faults),
        "restored": sum(not each.wrong for each in faults),
        "clean": len(clean),
        "kept": sum(not each.wrong for each in clean),
        "injected, by where": dict(sorted(injected.items())),
        "bodies run, by tool": dict(sorted(tools.items())),
        "steps undone, by status": dict(sorted(undone.items())),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [f"run {each.number}: {each.wrong}" for each in ended if each.wrong]


def _run(order: tuple[int, int, int, str]) -> Ended:
    number, seed, port, folder = order
    watch()
    name = f"{seed}/{number}"
    chance = random.Random(f"{name}/how")  # noqa: S311 - the same run again
    planner = Planner(name, mail=True)
    plan = planner.plan()
    fault = drawn_fault(calls_of(plan), chance) if chance.random() < 0.5 else None
    if fault is not None:
        _tellable(fault, plan)
    place = Place(Path(folder, str(number)), port)
    place.fill()
    before = place.digest()
    said = _carried_out(place, plan, fault, waits=chance.random() < 0.4)
    after = place.digest()
    wrong = _wrong(fault, before, after, planner.world.digest(), said)
    tools = collections.Counter(each.tool for each in lines_of(place.ledger) if each.began)
    where = "" if fault is None else f"{fault.when}: {calls_of(plan)[fault.at].tool}"
    ended = Ended(number, where, wrong, dict(tools), _undone(place))
    place.remove()
    return ended


def _tellable(fault: Fault, plan: tuple[Part, ...]) -> None:
    """Nobody can tell whether a mail that ended in an error was sent: it fails before."""
    if calls_of(plan)[fault.at].tool == "mail_post" and fault.when != "agent":
        fault.when = "agent"


def _carried_out(place: Place, plan: tuple[Part, ...], fault: Fault | None, *, waits: bool) -> str:
    """Do what is planned; the error that ended it, in words."""
    tools = place.tools()
    ledger = Ledger(place.ledger)
    for tool in tools.values():
        ledger.instrument(tool, place, fault)
    try:
        with Session("chaos", store=place.store, tools=tools) as session:
            Agent(session, place, tools, waits=waits, fault=fault).run(plan, whole=True)
    except Exception:  # noqa: BLE001 - judged by what is there
        return traceback.format_exc()
    finally:
        ledger.close()
    return ""


def _wrong(
    fault: Fault | None,
    before: dict[str, Any],
    after: dict[str, Any],
    end: dict[str, Any],
    said: str,
) -> str:
    if fault is None:
        wanted = end
        after["tables"].pop("receipts", None)
        if said:
            return f"it ran into an error that nobody planned\n{said}"
    else:
        wanted = before
        if not fault.came or not said:
            return f"the fault never came: {fault}"
    differs = [what for what in wanted if wanted[what] != after[what]]
    if not differs:
        return ""
    told = "\n".join(f"  {w}: wanted {wanted[w]}\n  {w}: there is {after[w]}" for w in differs)
    return f"{fault}\n{told}\n{said}"


def _undone(place: Place) -> dict[str, int]:
    """How the steps were undone that the traces speak of."""
    found: collections.Counter[str] = collections.Counter()
    for trace in place.store.glob("runs/*.jsonl"):
        for line in trace.read_bytes().splitlines():
            event = json.loads(line)
            if event["event"] == "undo.finished":
                found[event["status"]] += 1
    return dict(found)
