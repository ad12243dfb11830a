"""Writes that fail in each way, with each way to find out what became of them.

`doubt.txt` has a case in each block: how the write fails, and what its tool declares. It is called
in a session that goes on behind its error and is cut off; then the run is resumed, planned to be
undone, and undone. Under each act stands what came of it, and the lines that were written:

    python -m tests.laws.doubt    # writes it anew
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from rollcage import (
    Approval,
    DidNotHappen,
    Happened,
    Options,
    RollcageError,
    Session,
    aplan_undo,
    aundo_run,
    compensate,
    open_store,
    plan_undo,
    tool,
    undo_run,
)

from tests.laws.lab import folder

__all__ = ["CASES", "KEPT", "Case", "kept", "told"]

KEPT: Final = Path(__file__).with_name("doubt.txt")
_FIELDS: Final = (
    "status", "by", "acted", "again", "before", "after", "plan", "unclear", "retries", "reversible",
    "why", "steps", "reopens", "in_doubt", "spent", "replayed", "happened",
)  # fmt: skip


_BEFORE: Final[dict[str, Any]] = {
    "refuses": ValueError, "breaks before": RuntimeError, "lost before": TimeoutError,
}  # fmt: skip
_BEHIND: Final[dict[str, Any]] = {
    "breaks after": RuntimeError, "lost after": TimeoutError, "dies": KeyboardInterrupt,
}  # fmt: skip
_ENDS: Final = (RollcageError, KeyError, KeyboardInterrupt)
_HEX: Final = re.compile(r"[0-9a-f]{64}")


class Case(NamedTuple):
    """How a write fails, and what its tool declares."""

    fails: str  # works, or how: before or after its effect
    probe: str
    observe: str
    undo: str
    more: str  # `idempotent`, `once`, or that it asks whether it is made again
    is_async: bool

    def __str__(self) -> str:
        ways = {"probe": self.probe, "observe": self.observe, "undo": self.undo}
        declared = (f"{name} {way}" for name, way in ways.items() if way)
        said = (self.fails, *declared, self.more, "async" if self.is_async else "")
        return ", ".join(filter(None, said))


def _cases() -> Iterator[Case]:
    """Yield some cases of all: each pair of ways is in some."""
    every = [
        Case(*each)
        for each in itertools.product(
            ("works", *_BEFORE, *_BEHIND),
            ("", "yes", "no", "unsure", "fails"),
            ("", "works", "fails"),
            ("", "of args", "of result", "of before"),
            ("", "idempotent", "once", "once idempotent", "asks"),
            (False, True),
        )
        if each[3] != "of before" or each[2]
    ]
    yield from random.Random(5).sample(every, 110)  # noqa: S311 - no secret


CASES: Final = {str(case): case for case in _cases()}


class Job:
    """A job with one write."""

    def __init__(self, case: Case, store: Path) -> None:
        self.case, self.store = case, store
        self.state, self.fails, self.seen = 0, case.fails, 0
        self.text: list[str] = []
        self._told = 0
        self.write, self.back = self._tools()
        self.run = ""

    def _tools(self) -> tuple[Any, Any]:
        case = self.case

        def back(to: int) -> None:
            self.state = to

        declared: dict[str, Any] = {"effect": "write", "raises": [ValueError]}
        if "idempotent" in case.more:
            declared["idempotent"] = True
        if "once" in case.more:
            declared["once"] = "key/{of}"
        if case.probe:
            declared["probe"] = self._probe if not case.is_async else self._aprobe
        if case.observe:
            declared["observe"] = self._observe
        takes_back = tool(effect="write", name="back", idempotent=True)(back)
        undo = {
            "of args": lambda args: [compensate(takes_back, to=len(args["of"]) - 1)],
            "of result": lambda result: [compensate(takes_back, to=int(result[-1]) - 1)],
            "of before": lambda before: [compensate(takes_back, to=before["state"])],
        }
        if case.undo:
            declared["undo"] = undo[case.undo]

        async def aeffect(of: str) -> str:
            return self._effect(of)

        def effect(of: str) -> str:
            return self._effect(of)

        body: Any = aeffect if case.is_async else effect
        return tool(name="effect", **declared)(body), takes_back

    def _effect(self, of: str) -> str:
        fails, self.fails = self.fails, "works"
        if fails in _BEFORE:
            raise _BEFORE[fails](of)
        self.state += 1
        if fails in _BEHIND:
            raise _BEHIND[fails](of)
        return f"{of} {self.state}"

    def _probe(self, args: Mapping[str, Any]) -> Happened | DidNotHappen | None:
        if self.case.probe == "fails":
            raise ConnectionError(args["of"])
        if self.case.probe == "yes":
            return Happened(f"found {self.state}")
        return DidNotHappen() if self.case.probe == "no" else None

    async def _aprobe(self, args: Mapping[str, Any]) -> Happened | DidNotHappen | None:
        await asyncio.sleep(0)
        return self._probe(args)

    def _observe(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self.seen += 1
        if self.case.observe == "fails" and self.seen == 2:
            raise ConnectionError(args["of"])
        return {"state": self.state}

    # --- acts ------------------------------------------------------------------------------------

    def plays(self) -> None:
        """Call the write, resume the run, and undo it."""
        self._session("first", is_cut=True)
        self._session("resumed", is_cut=True)
        how: dict[str, Any] = {"tools": [self.write, self.back]}
        self._undone("plan", plan_undo, aplan_undo, **how)
        self._undone("plan to restore", plan_undo, aplan_undo, in_doubt="restore", **how)
        self._undone("undo", undo_run, aundo_run, **how)
        self._undone("undo again", undo_run, aundo_run, in_doubt="restore", **how)
        self._session("resumed behind that", is_cut=False)

    def _session(self, what: str, *, is_cut: bool) -> None:
        approver = (lambda _: Approval(True, by="eve")) if self.case.more == "asks" else None
        known = Options(tools=[self.write, self.back])
        session = Session("job", store=self.store, approver=approver, options=known)
        said: list[str] = []
        try:
            if self.case.is_async:
                asyncio.run(self._aprogram(session, said, is_cut=is_cut))
            else:
                with session:
                    for _ in range(2):
                        with self._goes_on(said):
                            said.append(session.call(self.write, of="x"))
                    if is_cut:
                        raise KeyError
        except _ENDS as error:
            said.append(type(error).__name__)
        self.run = session.run_id or self.run
        self._say(what, ", ".join(said))

    @staticmethod
    @contextlib.contextmanager
    def _goes_on(said: list[str]) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError, TimeoutError) as error:
            said.append(type(error).__name__)

    async def _aprogram(self, session: Session, said: list[str], *, is_cut: bool) -> None:
        async with session:
            for _ in range(2):
                with self._goes_on(said):
                    said.append(await session.acall(self.write, of="x"))
            if is_cut:
                raise KeyError

    def _undone(self, what: str, now: Any, later: Any, **how: Any) -> None:
        try:
            if self.case.is_async:
                report = asyncio.run(later(self.store, self.run, **how))
            else:
                report = now(self.store, self.run, **how)
            said = ", ".join(_step(each) for each in report.as_data()["steps"]) or "nothing"
        except RollcageError as error:
            said = type(error).__name__
        self._say(what, f"{said}; state {self.state}")

    def _say(self, what: str, said: str) -> None:
        self.text.append(f"{what}: {said}")
        lines = open_store(self.store).read(self.run)
        for line in lines[self._told :]:
            event = orjson.loads(line)
            if event["event"] not in ("run", "attempt", "undoing"):
                self.text.append(f"  {_shown(event)}")
        self._told = len(lines)


def _step(each: Mapping[str, Any]) -> str:
    calls = " ".join(f"{call['name']}({call['args']['to']})" for call in each.get("calls", ()))
    return f"{each['step']} {each.get('state') or each['status']} {calls}".rstrip()


def _shown(event: dict[str, Any]) -> str:
    said = [event["event"], *(str(event[name]) for name in ("step", "name") if name in event)]
    if "outcome" in event:
        outcome = event["outcome"]
        value = "never" if outcome is None else outcome.get("value", "")
        said.append(f"{'' if outcome is None else outcome['status']} {value}".strip())
    for field in _FIELDS:
        if value := event.get(field):
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            said.append(field if value is True else f"{field} {_HEX.sub('#', text)}")
    return " ".join(said).replace('"', "")


def told(case: Case) -> str:
    """Return what comes of a case."""
    with folder() as root:
        job = Job(case, root)
        job.plays()
    return "\n".join(job.text)


def kept() -> dict[str, str]:
    """Return the cases that are kept, and what came of each."""
    blocks = KEPT.read_text(encoding="utf-8").split("\n\n")
    return {case: text for case, _, text in (each.strip("\n").partition("\n") for each in blocks)}


if __name__ == "__main__":
    texts = (f"{name}\n{told(case)}\n" for name, case in CASES.items())
    KEPT.write_text("\n".join(texts), encoding="utf-8")
