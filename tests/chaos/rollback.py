"""Rollback chaos: runs in one transaction each, half of which fail somewhere.

A failed run must leave what was there before, a clean one what the model says: by what the harness
itself finds, whatever any report says. A run that was halted, since nobody could tell what an error
left, takes nothing back by itself: it is undone by `undo_run`, or resumed and then does all. Where
a tool's probe finds that a failed call has happened all the same, the run goes on as a clean one.
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
from typing import Any, Literal

from rollcage import Options, Session, UnknownOutcome, list_runs, undo_run

from tests.chaos import service
from tests.chaos.agent import Agent, calls_of, drawn_fault
from tests.chaos.crash import Judged
from tests.chaos.faults import Fault, Ledger, lines_of, watch
from tests.chaos.place import Place
from tests.chaos.work import Part, Planner

Way = Literal["clean", "rolled back", "undone", "resumed", "found out"]


@dataclasses.dataclass
class Ended:
    """What came of one run."""

    number: int
    fault: str  # when and at which tool; empty: it ran clean
    way: Way  # `undone`, `resumed`: what was done about a halt; `found out`: by a tool's probe
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
        "restored": sum(
            not each.wrong and each.way in ("rolled back", "undone") for each in faults
        ),
        "restored, by undo_run": sum(not each.wrong and each.way == "undone" for each in faults),
        "resumed, all done": sum(not each.wrong and each.way == "resumed" for each in faults),
        "found out, all done": sum(not each.wrong and each.way == "found out" for each in faults),
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
    waits, resumes = chance.random() < 0.4, chance.random() < 0.5
    way: Way = "clean" if fault is None else "rolled back"
    error = _carried_out(place, plan, fault, waits=waits)
    wrong = _unplanned(fault, place, plan, error)
    if fault is not None and error is None:
        way = "found out"
    elif fault is not None and isinstance(error, UnknownOutcome):
        way = "resumed" if resumes else "undone"
        wrong = wrong or (_resumed(place, plan, waits=waits) if resumes else _taken_back(place))
    done = way in ("clean", "resumed", "found out")
    wanted = planner.world.digest() if done else before
    wrong = wrong or _differs(wanted, place.digest(), done=done)
    if not wrong:
        judged = Judged(place, before, wanted, "work" if done else "undo", None, mail=True)
        wrong = "\n".join(judged.of_bodies())
    if wrong:
        told = "".join(traceback.format_exception(error))
        wrong = f"{fault}, {way}\n{wrong}\n{told}"
    tools = collections.Counter(each.tool for each in lines_of(place.ledger) if each.began)
    where = "" if fault is None else f"{fault.when}: {calls_of(plan)[fault.at].tool}"
    ended = Ended(number, where, way, wrong, dict(tools), _undone(place))
    place.remove()
    return ended


def _tellable(fault: Fault, plan: tuple[Part, ...]) -> None:
    """Nobody can tell whether a mail that ended in an error was sent: it fails before."""
    if calls_of(plan)[fault.at].tool == "mail_post" and fault.when != "agent":
        fault.when = "agent"


def _carried_out(
    place: Place, plan: tuple[Part, ...], fault: Fault | None, *, waits: bool
) -> Exception | None:
    """Do what is planned; the error that ended it."""
    tools = place.tools()
    ledger = Ledger(place.ledger)
    for tool in tools.values():
        ledger.instrument(tool, place, fault)
    try:
        with Session("chaos", store=place.store, options=Options(tools=tools)) as session:
            Agent(session, place, tools, waits=waits, fault=fault).run(plan, whole=True)
    except Exception as error:  # noqa: BLE001 - judged by what is there
        return error
    finally:
        ledger.close()
    return None


def _resumed(place: Place, plan: tuple[Part, ...], *, waits: bool) -> str:
    """Go on behind a halt, with nothing that fails: each call in doubt can be looked at."""
    error = _carried_out(place, plan, None, waits=waits)
    if error is None:
        return ""
    return "it could not be resumed:\n" + "".join(traceback.format_exception(error))


def _taken_back(place: Place) -> str:
    """Undo a run that was halted."""
    tools = place.tools()
    ledger = Ledger(place.ledger)
    for tool in tools.values():
        ledger.instrument(tool, place, None)
    try:
        (run,) = list_runs(place.store)
        report = undo_run(place.store, run.run, tools=tools)
    finally:
        ledger.close()
    return "" if report.complete else f"it could not be undone whole: {report}"


def _unplanned(
    fault: Fault | None, place: Place, plan: tuple[Part, ...], error: Exception | None
) -> str:
    """What is wrong with the error that ended a run."""
    if fault is None:
        return "" if error is None else "it ran into an error that nobody planned"
    if not fault.came:
        return "the fault never came"
    name = calls_of(plan)[fault.at].tool
    if error is None:
        tool: Any = place.tools()[name]
        can_tell = tool.__rollcage_contract__.probe is not None
        is_late = fault.when in ("middle", "behind")
        return "" if can_tell and is_late else "the fault was lost"
    posts = name.endswith("_post")
    unknown = fault.leaves_unknown(posts=posts)
    if unknown is None or unknown == isinstance(error, UnknownOutcome):
        return ""
    if unknown:
        return "nobody can tell what it left, and the run was not halted"
    return "it was halted, though it is known that the call failed"


def _differs(wanted: dict[str, Any], there: dict[str, Any], *, done: bool) -> str:
    """What is not there as it must be."""
    if done:
        there["tables"].pop("receipts", None)
    return "\n".join(
        f"  {what}: wanted {wanted[what]}\n  {what}: there is {there[what]}"
        for what in wanted
        if wanted[what] != there[what]
    )


def _undone(place: Place) -> dict[str, int]:
    """How the steps were undone that the logs speak of."""
    found: collections.Counter[str] = collections.Counter()
    for log in place.store.glob("logs/*.jsonl"):
        for line in log.read_bytes().splitlines():
            event = json.loads(line)
            if event["event"] == "back":
                found[event["status"]] += 1
    return dict(found)
