"""Executions that people, time and dying workers meet, under a clock that skips days.

Everything follows from a seed. A worker makes one attempt after another; it may die behind any line
of one, with all that it did after that line undone: its lines, its documents, its effects. People
send signals and decide, rightly and wrongly, too late and twice; they pause, resume and cancel;
plans are replaced while their executions wait; schedules start more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from cuts import cut_log
from parts import requests_in
from random_plans import DAY, Expected, Generator, is_right
from rollcage import Approval, ApprovalQueue, list_runs, open_store
from rollcage.errors import ApprovalInvalid
from rollcage.trace.folder import Folder
from rollcage_workflow import Execution, check, execution, executions, running
from rollcage_workflow.engine import worker as working
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.holds import prefix_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals
from workers import Crew
from worlds import World

__all__ = ["Universe"]

_BEGIN = 1_800_000_000.0
_ROUNDS = 150  # half days, in which all ends once people do what they are asked to


class Died(BaseException):
    """A worker died: the command that it had taken stays open."""


class Job:
    """An execution: its plan, and what stands when it has ended well."""

    def __init__(self, name: str, seed: int) -> None:
        made = Generator(seed, people=True)
        self.name = name
        self.plan, self.inner, self.expected = made.plan()
        self.plan["name"] = name
        self.fails = made.chance.random() < 0.25
        self.inputs = {"where": name, "fails": self.fails}
        self.is_cancelled = self.is_deployed = False

    def deploy(self) -> None:
        """Replace the plan by one with another write behind all other steps, and a read."""
        self.plan = copy.deepcopy(self.plan)
        steps = self.plan["steps"]
        steps["read"] = {"call": "look", "args": {"what": "more"}}
        args = {"where": self.name, "what": "added"}
        steps["added"] = {"call": "mark", "args": args, "after": [*steps]}
        self.is_deployed = True

    def is_right(self, job: Execution, stands: Counter[str]) -> bool:
        """Whether what stands is what the end of the execution leaves."""
        if job.status != "completed":
            return not stands
        ends = [self.expected]
        if self.is_deployed:  # with the plan of its last attempt
            ends.append(Expected(parts=(self.expected, Expected("added"))))
        return any(is_right(each, stands) for each in ends)


class Universe:
    """A store, workers, people, and a clock.

    Args:
        seed: of everything that happens.
        folder: for the store.
        jobs: how many executions.
    """

    def __init__(self, seed: int, folder: Path, *, jobs: int = 2) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - reproducible
        self.world = World(folder / "store")
        self.store = open_store(self.world.store)
        self.queue = ApprovalQueue(self.store)
        self.jobs = [Job(f"plan{seed}x{n}", seed * 10 + n) for n in range(jobs)]
        self.now = _BEGIN
        self.story: list[str] = []
        self.kills = self.cuts = self.refusals = 0
        self._lines: dict[str, int] = {}
        self._swaps: list[tuple[dict[str, int], str, str, bytes | None]] = []

    def note(self, text: str) -> None:
        """Put something into the story."""
        self.story.append(f"{(self.now - _BEGIN) / DAY:6.2f} {text}")

    # --- workers ---------------------------------------------------------------------------------

    def crew(self) -> Crew:
        """A worker with the plans as they are now, and this universe's time."""
        checked = [check(each.plan, self.world.tools, each.inner) for each in self.jobs]
        crew = Crew(self.world, *checked, session={"clock": lambda: int(self.now * 1e9)})
        crew.board._clock = lambda: self.now
        return crew

    async def work(self, *, dies: bool) -> bool:
        """Have a worker take a command that is due; return whether there was one."""
        crew = self.crew()
        due = crew.due()
        if not due:
            return False
        key = self.chance.choice(due)
        how = self.chance.choice(["", "dies", "dies", "is cut off"]) if dies else ""
        with self._dying(how == "dies"):
            try:
                take = crew.worker.take(key)
                outcome = await (self._cut_off(take) if how == "is cut off" else take)
                self.note(f"took {key[-12:]}: {outcome or 'open'}")
            except Died:
                self.note("died")
            except asyncio.CancelledError:
                self.cuts += 1
                self.note("was cut off")
        self.look()
        return True

    async def _cut_off(self, take: Coroutine[Any, Any, str]) -> str:
        """Have a worker end in the middle of an attempt."""
        task = asyncio.create_task(take)
        for _ in range(self.chance.randint(1, 300)):
            await asyncio.sleep(0)
        task.cancel()
        return await task

    @contextlib.contextmanager
    def _dying(self, dies: bool) -> Iterator[None]:
        """Let a worker's attempt, if it writes lines, have ended behind one of them."""
        if not dies:
            yield
            return
        swap, run = Folder.swap, running.run
        swaps: list[tuple[Counter[str], str, str, bytes | None, bytes | None]] = []

        def swapped(
            store: Folder, kind: str, key: str, was: bytes | None, new: bytes | None
        ) -> bool:
            done = swap(store, kind, key, was, new)
            if done:
                swaps.append((self._count(), kind, key, was, new))
            return done

        async def ran(*given: Any, **more: Any) -> Any:
            before = self._count()
            swaps.clear()
            try:
                await run(*given, **more)
            except Exception as error:  # noqa: BLE001 - it had died by then
                self.note(f"would have failed: {error!r:.60}")
            after = self._count()
            grown = [each for each in after if after[each] > max(before[each], 1)]
            if not grown:
                raise Died
            (log,) = grown
            line = self.chance.randint(max(before[log], 1), after[log] - 1)
            self._back(log, line, swaps, swap)
            raise Died

        with mock.patch.object(Folder, "swap", swapped), mock.patch.object(working, "run", ran):
            yield

    def _back(self, log: str, line: int, swaps: Any, swap: Callable[..., bool]) -> None:
        """Undo all that happened behind a line of a log."""
        self.kills += 1
        self.note(f"dies behind line {line}")
        for at, kind, key, was, new in reversed(swaps):
            if at[log] > line:
                swap(self.store, kind, key, new, was)
        cut_log(self.world.store / "logs" / f"{log}.jsonl", line)
        flying = [d for d in self.world.deeds if d.run == log and d.line == line]
        lost = flying[self.chance.randint(0, len(flying)) :]
        self.world.deeds[:] = [
            deed for deed in self.world.deeds
            if deed.run != log or deed.line < line or (deed.line == line and deed not in lost)
        ]  # fmt: skip

    def _count(self) -> Counter[str]:
        """How many lines each log has."""
        logs = (self.world.store / "logs").glob("*.jsonl")
        return Counter({each.stem: each.read_bytes().count(b"\n") for each in logs})

    # --- people ----------------------------------------------------------------------------------

    def job(self, job: Job) -> Execution:
        return execution(self.store, job.name)

    def start(self, job: Job) -> None:
        started = self.crew().commands.start(
            job.plan["name"], job.inputs, id=job.name, by="carl", at=self._later()
        )
        self.note(f"{job.name} is started: {started}")

    def _later(self) -> float:
        return self.chance.choice([0.0, 0.0, self.now + 3600])

    def signal(self, job: Job, name: str, data: Any, once: str = "") -> None:
        """Send a signal; a refusal is an answer, and changes nothing."""
        before = self.job(job)
        try:
            Signals(self.store, job.name).send(name, data, by="ann", once=once)
            self.note(f"{job.name} gets {name} {data}")
        except WorkflowError as error:
            self.refusals += 1
            assert self.job(job) == before, "a refused signal changed the execution"
            self.note(f"{job.name} refuses {name}: {error!r:.60}")

    def decide(self, *, right: bool) -> None:
        """Decide about what is asked: with approval, or anyhow."""
        for asked in requests_in(self.store):
            request = self.queue.get(asked)
            if request is None or self.queue.decision(request) is not None:
                continue
            by = "bob" if right else self.chance.choice(["bob", "carl", "ann"])
            yes = right or self.chance.random() < 0.5
            answer = Approval(True, by=by) if yes else Approval.reject("no", by=by)
            try:
                self.queue.decide(asked, answer, now=int(self.now * 1e6))
                self.note(f"{by} says {'yes' if yes else 'no'} to {asked}")
            except ApprovalInvalid as error:
                self.refusals += 1
                self.note(f"{asked} takes no answer of {by}: {error!r:.60}")

    def steer(self, job: Job) -> None:
        """Pause, resume or cancel; who comes too late is told so."""
        commands = self.crew().commands
        what = self.chance.choice(["pause", "pause", "resume", "resume", "cancel"])
        try:
            if what == "cancel":
                if self.chance.random() < 0.7:
                    return
                commands.cancel(job.name, by="ann", rollback=True)
                job.is_cancelled = True
            elif what == "pause":
                commands.pause(job.name, by="ann")
            else:
                commands.resume(job.name, by="ann")
            self.note(f"{job.name}: {what}")
        except WorkflowError as error:
            self.refusals += 1
            self.note(f"{job.name}: no {what}: {error!r:.60}")

    # --- what holds ------------------------------------------------------------------------------

    def look(self) -> None:
        """Check what holds at any moment."""
        assert self.world.most <= 1, "an effect stands twice"
        for job in self.jobs:
            stands = self.standing(job)
            twice = [label for label, count in stands.items() if count != 1]
            assert not twice, f"done twice, under two keys: {twice}"
            if not job.fails and not job.is_cancelled:
                kept = job.expected.kept
                undone = {d.label for d in self._deeds(job) if d.sign < 0} & kept
                assert not undone, f"undone although nothing failed: {undone}"
            found = self.job(job)
            if found.status == "halted":  # cut off in a write or an undo: the next attempt goes on
                keys = Commands(self.store).open_keys()
                assert any(key.startswith(prefix_of(job.name)) for key in keys), found.waits
            if found.status == "waiting":
                assert found.waits, "it waits, and does not say for what"

    def _deeds(self, job: Job) -> Any:
        runs = {info.run for info in list_runs(self.store) if info.name == job.name}
        return [deed for deed in self.world.deeds if deed.run in runs]

    def standing(self, job: Job) -> Counter[str]:
        """What stands of an execution, by label."""
        found = Counter[str]()
        for deed in self._deeds(job):
            found[deed.label] += deed.sign
        return +found

    # --- the whole -------------------------------------------------------------------------------

    async def live(self, steps: int) -> None:
        """So many things happen, anyhow."""
        waiting = [*self.jobs]
        for _ in range(steps):
            job = self.chance.choice(self.jobs)
            what = self.chance.choices(
                ["work", "start", "signal", "decide", "wait", "steer", "deploy"],
                [10, 2, 4, 3, 3, 1.5, 0.3],
            )[0]
            if what == "work":
                await self.work(dies=True)
            elif what == "start" and waiting:
                self.start(waiting.pop())
            elif what == "signal":
                name = self.chance.choice(["go", "go", "form", "gone"])
                data: Any = self.chance.choice([*[{"yes": True}] * 2, {"yes": 1}, None, []])
                self.signal(job, name, data, self.chance.choice(["", "", "once"]))
            elif what == "decide":
                self.decide(right=False)
            elif what == "wait":
                self.now += self.chance.choice([1, 60, 3600, DAY / 2, DAY, 3 * DAY])
            elif what == "steer":
                self.steer(job)
            elif what == "deploy" and not job.is_deployed:
                job.deploy()
                self.note(f"{job.name} has a new plan")
            self.look()
        for each in waiting:
            self.start(each)

    async def end(self) -> None:
        """People do what they are asked to, and no worker dies: all of it ends."""
        for job in self.jobs:
            with contextlib.suppress(WorkflowError):
                self.crew().commands.resume(job.name, by="ann")
        open_: list[Job] = []
        for _ in range(_ROUNDS):
            while await self.work(dies=False):
                pass
            open_ = [job for job in self.jobs if not self.job(job).is_over]
            if not open_ and not self.crew().commands.open_keys():
                break
            self.decide(right=True)
            for job in open_:
                for name in ("go", "form"):
                    self.signal(job, name, {"yes": True})
            self.now += DAY / 2
        else:
            waits = [(job.name, self.job(job).status, self.job(job).waits) for job in open_]
            raise AssertionError(f"it never ends: {waits}")
        for job in self.jobs:
            found, stands = self.job(job), self.standing(job)
            fine = {"rolled_back"} if job.fails else {"completed"}
            fine |= {"rolled_back", "cancelled"} if job.is_cancelled else set()
            assert found.status in fine, (job.name, found.status, found.error)
            assert job.is_right(found, stands), (job.name, found.status, stands)
        assert not requests_in(self.store), "somebody is still asked"
        assert len(executions(self.store)) <= len(self.jobs)
