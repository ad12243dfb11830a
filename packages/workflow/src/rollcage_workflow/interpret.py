"""Does the steps of a plan, each as a call of a session, in an order that their results allow.

A step stands in a branch of its own that comes after those of the steps it depends on: what it
does is found again after a crash, whatever went on beside it. Nothing in flight is ever broken off
because something else failed: no other step begins, and what was begun ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, Final, Literal

from rollcage import Halt, Session, SessionHalted

from rollcage_workflow.errors import ExpressionFailed, InputsInvalid, StepFailed
from rollcage_workflow.expressions import fill, plain
from rollcage_workflow.graph import Checked, Graph, Loop, Node, Unit
from rollcage_workflow.plan import Each, OnFailure, Repeat, Retry, Step, Team, Wait
from rollcage_workflow.records import NOW, SIGNAL, container, utc
from rollcage_workflow.schemas import Shape, invalid
from rollcage_workflow.signals import Signals

__all__ = ["Interpreter", "Waits", "given_inputs"]

Variables = Mapping[str, Any]
Branches = tuple[Any, ...]
"""The branches that a step comes after, as `Session.branch` gives them."""


class Waits(Halt):
    """A step waits for something that is not there yet: the attempt ends, and another goes on.

    Attributes:
        reasons: for what.
        until: the time at which the first of it ends by itself (Unix, seconds); None: never.
    """

    code = "waits"

    def __init__(self, reasons: Iterable[str], until: float | None = None) -> None:
        self.reasons = tuple(reasons)
        self.until = until
        super().__init__("; ".join(self.reasons))

    @classmethod
    def both(cls, some: Iterable[Waits]) -> Waits:
        """All of what several wait for."""
        each = list(some)
        times = [one.until for one in each if one.until is not None]
        return cls(dict.fromkeys(reason for one in each for reason in one.reasons),
                   min(times, default=None))  # fmt: skip


class _NotReached(Exception):
    """A step that this one comes after did not end well."""


class _Lost(Exception):
    """Another member of the team was first."""


_NO_FAILURES = (Waits, _NotReached, _Lost, Halt, SessionHalted)
"""What ends a step without being its failure."""


@dataclasses.dataclass(slots=True)
class _Flow:
    """What is going on together: where one part of it fails, no other begins.

    Attributes:
        around: what this is a part of.
        over: no other step begins.
        calls: what is in flight, changes nothing, and may be broken off.
        sleeps: the same, where it is nothing but a time that passes.
    """

    around: _Flow | None = None
    over: bool = False
    calls: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])
    sleeps: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set["asyncio.Task[Any]"])

    def end(self, *, calls: bool = False) -> None:
        """Begin no other step; nobody sleeps on, and calls that change nothing may end, too."""
        self.over = True
        for task in [*self.sleeps, *(self.calls if calls else ())]:
            task.cancel()

    def check(self) -> None:
        flow: _Flow | None = self
        while flow is not None:
            if flow.over:
                raise _NotReached
            flow = flow.around


@dataclasses.dataclass(frozen=True, slots=True)
class _Done:
    """A step that ended: its result, the branches that stand for it, its error if it is kept."""

    value: Any
    after: Branches
    error: Exception | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where steps are done.

    Attributes:
        variables: what their expressions see.
        suffix: behind their names, so that each round of a loop has branches of its own.
        after: the branches that all of them come after.
        flow: what they are a part of.
        path: for messages: `mails[3].`.
    """

    variables: Variables
    flow: _Flow
    suffix: str = ""
    after: Branches = ()
    path: str = ""

    def with_(self, variables: Variables, **changed: Any) -> _Place:
        return dataclasses.replace(self, variables={**self.variables, **variables}, **changed)


def given_inputs(checked: Checked, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an execution, with the plan's defaults.

    Raises:
        InputsInvalid: they are not what the plan declares; says all that is wrong.
    """
    plan, wrong = checked.plan, []
    found: dict[str, Any] = {}
    for name in given.keys() - plan.inputs.keys():
        known = ", ".join(plan.inputs) or "it has none"
        wrong.append(f"{name}: the plan {plan.name!r} has no such input ({known})")
    for name, schema in plan.inputs.items():
        if name not in given and "default" not in schema:
            wrong.append(f"{name}: is missing")
            continue
        try:
            found[name] = plain(given[name] if name in given else schema["default"])
        except ValueError as error:
            wrong.append(f"{name}: has no JSON form: {error}")
            continue
        why = invalid(found[name], Shape.of(schema))
        if why is not None:
            wrong.append(f"{name}: {why}")
    if wrong:
        raise InputsInvalid("; ".join(sorted(wrong)))
    return found


class Interpreter:
    """Does a checked plan in an open session.

    Args:
        session: it is open; all calls go through it.
        signals: what was sent to the execution.
        clock: the time now (Unix, ns).
        patience: how long a time is waited for in the process (seconds); for one that is further
            off, the attempt ends.
        told: is told of each step as it begins and ends: path, state.

    """

    def __init__(
        self,
        session: Session,
        signals: Signals,
        clock: Callable[[], int],
        patience: float,
        told: Callable[[str, str], None],
    ) -> None:
        self._session = session
        self._signals = signals
        self._clock = clock
        self._patience = patience
        self._told = told

    async def plan(self, checked: Checked, inputs: Mapping[str, Any]) -> Any:
        """All of a plan; its output.

        Raises:
            Waits: it is not through: something is waited for.
            Exception: of the first step that failed.
        """
        return await self._plan(checked, inputs, _Flow(), "")

    async def _plan(
        self, checked: Checked, inputs: Mapping[str, Any], flow: _Flow, path: str
    ) -> Any:
        place = _Place({"inputs": dict(inputs)}, flow, path=path)
        limit = checked.plan.time_limit
        if limit is None:
            return await self._block(checked.graph, place)
        began = await self._reached("")
        timeout = asyncio.timeout(began + limit - self._clock() / 1e9)
        try:
            async with timeout:
                return await self._block(checked.graph, place)
        except TimeoutError:
            if not timeout.expired():
                raise
            what = path.removesuffix(".") or "the execution"
            raise StepFailed(f"{what} took longer than {limit:g} s") from None

    async def _reached(self, step: str) -> float:
        """When a step, or a plan, was reached first (Unix, seconds)."""
        reached = await self._session.arun(
            NOW, {"step": step}, lambda **_: utc(self._clock()), is_async=False
        )
        return dt.datetime.fromisoformat(reached).timestamp()

    # --- blocks ----------------------------------------------------------------------------------

    async def _block(self, graph: Graph, place: _Place) -> Any:
        """The steps of a block, and its result."""
        done = await self._units(graph.units, place)
        if graph.result is None:
            return done[graph.last].value
        return fill(graph.result, {**place.variables, **_values(done)})

    async def _units(self, units: Iterable[Unit], place: _Place) -> dict[str, _Done]:
        """Do units, each as soon as those are done that it comes after; what each step gave."""
        flow = _Flow(place.flow)
        place = dataclasses.replace(place, flow=flow)
        waiting: dict[str, asyncio.Future[_Done]] = {}
        loop = asyncio.get_running_loop()
        for unit in units:
            names = unit.names if isinstance(unit, Loop) else {unit.name}
            waiting.update((name, loop.create_future()) for name in names)
        opens = _Rounds(_order(units))
        with self._session.turn(opens=opens):  # all of them begin in one world
            tasks = [asyncio.create_task(self._unit(unit, place, waiting)) for unit in units]
            try:
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
        _raise_first(ended)
        return {name: future.result() for name, future in waiting.items()}

    async def _unit(
        self, unit: Unit, place: _Place, waiting: Mapping[str, asyncio.Future[_Done]]
    ) -> None:
        names = sorted(unit.names) if isinstance(unit, Loop) else [unit.name]
        try:
            before = {name: await _of(waiting[name]) for name in unit.before if name in waiting}
            place.flow.check()
            after = tuple(
                dict.fromkeys((*place.after, *(b for each in before.values() for b in each.after)))
            )
            here = place.with_(_values(before), after=after)
            if isinstance(unit, Loop):
                found = await self._loop(unit, here)
            else:
                found = {unit.name: await self._step(unit, here)}
        except BaseException as error:
            if not isinstance(error, (_NotReached, Waits)):
                place.flow.end()
            for name in names:
                waiting[name].set_exception(_NotReached())
                waiting[name].exception()  # it is told here, by whom it concerns
            raise
        for name in names:
            waiting[name].set_result(found[name])

    async def _loop(self, loop: Loop, place: _Place) -> dict[str, _Done]:
        """The steps of a jump, as often as it is taken."""
        last: Any = None
        for number in range(1, loop.jump.most + 2):
            suffix = place.suffix if number == 1 else f"{place.suffix}.{number}"
            here = place.with_({"last": last}, suffix=suffix)
            found = await self._units(loop.units, here)
            jumps = found[loop.last]
            last = jumps.value
            seen = {**place.variables, **_values(found), "last": last}
            if number > loop.jump.most or not _true(loop.jump.when, seen):
                if number > loop.jump.most and _true(loop.jump.when, seen):
                    raise StepFailed(
                        f"{place.path}{loop.last}: would go back to {loop.first} once more, and "
                        f"did so {loop.jump.most} times: that is the most"
                    )
                return found
            place = dataclasses.replace(
                place, after=tuple(dict.fromkeys((*place.after, *jumps.after)))
            )
        raise AssertionError("unreachable")

    # --- a step ----------------------------------------------------------------------------------

    async def _step(self, node: Node, place: _Place) -> _Done:
        """A step: skipped, kept though it failed, tried again, or done."""
        step, path = node.step, f"{place.path}{node.name}{place.suffix}"
        try:
            if step.when is not None and not _true(step.when, place.variables):
                self._told(path, "skipped")
                return _Done(None, place.after)
            self._told(path, "running")
            done = await self._attempts(node, place)
        except ExpressionFailed as error:
            if step.on_failure != "keep":
                self._failed(step, path, error)
                raise
            done = _Done(None, place.after, error)
        except (Waits, _NotReached, _Lost, asyncio.CancelledError):
            self._told(path, "waiting")
            raise
        except (Halt, SessionHalted):
            self._told(path, "halted")
            raise
        except Exception as error:
            self._failed(step, path, error)
            raise
        self._told(path, "completed" if done.error is None else "failed")
        if step.on_failure != "keep":
            return done
        if done.error is None:
            return _Done({"ok": True, "value": done.value}, done.after)
        told = {"type": type_name(done.error), "message": str(done.error)}
        return _Done({"ok": False, "error": told}, done.after)

    def _failed(self, step: Step, path: str, error: Exception) -> None:
        self._told(path, "failed")
        if not any(note.startswith("in step ") for note in _notes(error)):
            error.add_note(f"in step {path} of the plan")
        _say(error, step.on_failure)

    async def _attempts(self, node: Node, place: _Place) -> _Done:
        """A step, tried as often as it may be; of one that is kept, its last error."""
        retry = node.step.retry
        attempts, wait = (retry.attempts, retry.wait) if retry else (1, 0.0)
        attempt = 1
        while True:
            failed: Exception
            try:
                done = await self._once(node, place, "" if attempt == 1 else f"~{attempt}")
                if done.error is None:
                    return done
                failed = done.error
            except _NO_FAILURES:
                raise
            except Exception as error:  # noqa: BLE001 - raised again below, or worth a retry
                done, failed = None, error
            ended = attempt == attempts or self._session.halted is not None
            if retry is None or ended or not _is_worth(retry, failed):
                if done is None:
                    raise failed
                return done
            await _breakable(asyncio.sleep(wait), place.flow, "sleeps")
            wait *= retry.factor
            attempt += 1
            place.flow.check()

    async def _once(self, node: Node, place: _Place, mark: str) -> _Done:
        """One attempt at a step; of one that is kept, its error, too: what it did stays done."""
        if node.step.kind == "value":
            return _Done(fill(node.step.value, place.variables), place.after)
        name = f"{node.name}{place.suffix}{mark}"
        with self._session.branch(name, after=place.after) as branch:
            try:
                value = await self._timed(node, place)
            except _NO_FAILURES:
                raise
            except Exception as error:
                if node.step.on_failure != "keep" or self._session.halted is not None:
                    raise
                return _Done(None, (branch,), error)
        return _Done(value, (branch,))

    async def _timed(self, node: Node, place: _Place) -> Any:
        limit = node.step.timeout
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                return await getattr(self, f"_{node.step.kind}")(node, place)
        except TimeoutError:
            if not timeout.expired():
                raise
            said = f"{place.path}{node.name}: took longer than {limit:g} s"
            raise StepFailed(said) from None

    # --- kinds of steps --------------------------------------------------------------------------

    async def _call(self, node: Node, place: _Place) -> Any:
        assert node.tool is not None
        assert node.contract is not None
        arguments = fill(node.step.args, place.variables)
        call = self._session.acall(node.tool, **arguments)
        if node.contract.effect in ("write", "scope"):
            value = await call
        else:
            value = await _breakable(call, place.flow)
        try:
            return plain(value)
        except ValueError as error:
            said = f"{node.contract.name} gave what has no JSON form; let it return plain data"
            raise StepFailed(f"{place.path}{node.name}: {said}: {error}") from None

    _agent = _call

    async def _wait(self, node: Node, place: _Place) -> Any:
        wait = node.step.wait
        assert wait is not None
        if wait.signal is not None:
            return await self._signal(wait)
        if wait.seconds is not None:
            until = await self._reached(node.name) + wait.seconds
        else:
            until = _time(fill(wait.until, place.variables))
        left = until - self._clock() / 1e9
        if left > self._patience:
            at = utc(int(until * 1e9))
            raise Waits([f"{place.path}{node.name} waits until {at}"], until)
        place.flow.check()
        await _breakable(asyncio.sleep(max(left, 0.0)), place.flow, "sleeps")
        return utc(int(until * 1e9))

    async def _signal(self, wait: Wait) -> Any:
        name = str(wait.signal)
        there = await asyncio.to_thread(self._signals.read, name)
        if there is None:  # nothing goes on record: a wait in a race may be undone, and begin again
            raise Waits([f"waits for the signal {name}"])
        sent = await self._session.arun(SIGNAL, {"name": name}, lambda **_: there, is_async=False)
        why = None if wait.accepts is None else invalid(sent["data"], Shape.of(wait.accepts))
        if why is not None:
            raise StepFailed(f"the signal {name} brought what the plan does not accept: {why}")
        return sent["data"]

    async def _workflow(self, node: Node, place: _Place) -> Any:
        checked = node.plan
        assert checked is not None
        inputs = given_inputs(checked, fill(node.step.inputs, place.variables))
        path = f"{place.path}{node.name}."

        async def body(**_: object) -> Any:
            try:
                return await self._plan(checked, inputs, place.flow, path)
            except _NO_FAILURES:
                raise
            except Exception as error:
                if "on_failure" in checked.plan.model_fields_set:
                    _say(error, checked.plan.on_failure)
                raise

        named = {"plan": checked.plan.name, "inputs": inputs}
        return await self._session.arun(container("workflow"), named, body, is_async=True)

    async def _each(self, node: Node, place: _Place) -> Any:
        each, graph = node.step.each, node.inner
        assert each is not None
        assert graph is not None
        items = fill(each.over, place.variables)
        if not isinstance(items, list):
            raise ExpressionFailed(f"{each.over} gives no list")
        passes = _passes(each, items)

        async def body(**_: object) -> Any:
            return await self._side_by_side(
                [_Member(str(n), f"{place.path}{node.name}[{n}].") for n in range(len(passes))],
                each.max_concurrent,
                place,
                lambda n, here: self._block(
                    graph, here.with_({"item": passes[n], "index": n}, suffix="")
                ),
            )

        named = {"step": node.name, "over": items}
        return await self._session.arun(container("each"), named, body, is_async=True)

    async def _repeat(self, node: Node, place: _Place) -> Any:
        repeat, graph = node.step.repeat, node.inner
        assert repeat is not None
        assert graph is not None

        async def body(**_: object) -> Any:
            return await self._rounds(repeat, graph, place, f"{place.path}{node.name}")

        return await self._session.arun(
            container("repeat"), {"step": node.name}, body, is_async=True
        )

    async def _rounds(self, repeat: Repeat, graph: Graph, place: _Place, path: str) -> Any:
        last: Any = None
        for number in range(1, repeat.most + 1):
            place.flow.check()
            here = place.with_(
                {"round": number, "last": last}, suffix="", path=f"{path}[{number}].", after=()
            )
            with self._session.branch(str(number)):
                done = await self._units(graph.units, here)
            seen = {**here.variables, **_values(done)}
            last = done[graph.last].value if graph.result is None else fill(graph.result, seen)
            if _true(repeat.until, {**seen, "last": last}):
                return last
        if repeat.then == "go_on":
            return last
        raise StepFailed(f"{path}: {repeat.until} was not true behind any of {repeat.most} rounds")

    async def _team(self, node: Node, place: _Place) -> Any:
        team, graph = node.step.team, node.inner
        assert team is not None
        assert graph is not None
        members = {unit.name: unit for unit in graph.units if isinstance(unit, Node)}

        async def body(**_: object) -> Any:
            if team.mode == "all":
                names = list(members)
                values = await self._side_by_side(
                    [_Member(name, f"{place.path}{node.name}.") for name in names],
                    team.max_concurrent,
                    place,
                    lambda n, here: self._value_of(members[names[n]], here),
                )
                return dict(zip(names, values, strict=True))
            wanted = 1 if team.mode == "race" else team.quorum or 1
            found = await self._first(team, members, wanted, place, f"{place.path}{node.name}.")
            if team.mode == "quorum":
                return found
            winner, value = next(iter(found.items()))
            return {"winner": winner, "value": value}

        named = {"step": node.name, "members": sorted(members), "mode": team.mode}
        return await self._session.arun(container("team"), named, body, is_async=True)

    async def _value_of(self, node: Node, place: _Place) -> Any:
        return (await self._step(node, place)).value

    async def _side_by_side(
        self,
        members: list[_Member],
        most: int,
        place: _Place,
        do: Callable[[int, _Place], Awaitable[Any]],
    ) -> list[Any]:
        """Do parts at once, each in a branch of its own; their results, in order."""
        room = asyncio.Semaphore(most)
        flow = _Flow(place.flow)

        async def one(number: int) -> Any:
            member = members[number]
            async with room:
                flow.check()
                here = dataclasses.replace(place, flow=flow, path=member.path, after=())
                try:
                    with self._session.branch(member.name):
                        return await do(number, dataclasses.replace(here, suffix=""))
                except (_NotReached, Waits):
                    raise
                except BaseException:
                    flow.end()
                    raise

        with self._session.turn(opens={member.name: () for member in members}):
            tasks = [asyncio.create_task(one(number)) for number in range(len(members))]
            with _cancelling(tasks):
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                _raise_first(ended)
        return list(ended)

    async def _first(
        self,
        team: Team,
        members: Mapping[str, Node],
        wanted: int,
        place: _Place,
        path: str,
    ) -> dict[str, Any]:
        """The results of the first to end well; what the others did is undone.

        Of those, no other step begins; calls that change nothing are broken off, writes end.
        """
        room = asyncio.Semaphore(team.max_concurrent)
        flow = _Flow(place.flow)
        found: dict[str, Any] = {}

        async def one(name: str) -> None:
            async with room:
                here = dataclasses.replace(place, flow=flow, path=path, after=(), suffix="")
                async with self._session.transaction(name):
                    flow.check()  # in here: what an attempt before this one did in it is undone
                    value = await self._value_of(members[name], here)
                    if len(found) >= wanted:
                        raise _Lost
                    found[name] = value
                    if len(found) == wanted:
                        flow.end(calls=True)

        with self._session.turn(opens=dict.fromkeys(members, ())):
            tasks = [asyncio.create_task(one(name)) for name in members]
            with _cancelling(tasks):
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [each for each in ended if isinstance(each, BaseException)]
        _raise_halts(failed)
        if len(found) < wanted:
            waits = [each for each in failed if isinstance(each, Waits)]
            if len(found) + len(waits) >= wanted:  # they may still end well
                raise Waits.both(waits)
            _raise_first([each for each in failed if not isinstance(each, _Lost)])
        return {name: found[name] for name in members if name in found}


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One of the parts that are done at once."""

    name: str
    path: str


class _Rounds(Mapping[str, Collection[str]]):
    """The branches of steps, in whichever round or attempt, and those that each comes after."""

    def __init__(self, before: Mapping[str, Collection[str]]) -> None:
        self._before = before

    def __getitem__(self, name: str) -> Collection[str]:
        return self._before[re.split(r"[.~]", name, maxsplit=1)[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._before)

    def __len__(self) -> int:
        return len(self._before)


def _order(units: Iterable[Unit]) -> dict[str, Collection[str]]:
    """By step, those that it comes after; within a loop, all that the loop comes after."""
    found: dict[str, Collection[str]] = {}
    for unit in units:
        if isinstance(unit, Node):
            found[unit.name] = unit.before
        else:
            inner = _order(unit.units)
            found |= {name: (*before, *unit.before) for name, before in inner.items()}
    return found


# --- small things --------------------------------------------------------------------------------


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


_ON_FAILURE: Final = "on_failure: "


def _say(error: BaseException, said: OnFailure | None) -> None:
    """Note what is said of an error, unless something closer to it says something.

    It is a note, so that it is on record with the error: a replay finds it there.
    """
    if said is not None and on_failure(error) is None:
        error.add_note(f"{_ON_FAILURE}{said}")


def on_failure(error: BaseException) -> str | None:
    """What the step, or the plan, in which an error came up says of that; None: nothing."""
    said = (note for note in _notes(error) if note.startswith(_ON_FAILURE))
    return next((note.removeprefix(_ON_FAILURE) for note in said), None)


def type_name(error: BaseException) -> str:
    """What an error is called in `retry.on` and in kept results."""
    named = getattr(error, "type_name", None)
    return str(named) if named else type(error).__name__


def _is_worth(retry: Retry, error: Exception) -> bool:
    """Whether an error is worth another attempt: one that says that the call is wrong is not."""
    if type_name(error) in ("ArgumentsInvalid", "Blocked", "ExpressionFailed", "ContractError"):
        return False
    names = {each.__name__ for each in type(error).__mro__} | {type_name(error)}
    return not retry.on or bool(names & set(retry.on))


def _true(source: str, variables: Variables) -> bool:
    value = fill(source, variables)
    if not isinstance(value, bool):
        raise ExpressionFailed(f"{source} is neither true nor false, but {value!r:.80}")
    return value


def _time(text: Any) -> float:
    try:
        found = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ExpressionFailed(f"{text!r:.80} is no time: 2027-01-31T08:00:00Z") from None
    if found.tzinfo is None:
        raise ExpressionFailed(f"{text!r:.80} has no offset: 2027-01-31T08:00:00Z")
    return found.timestamp()


def _passes(each: Each, items: list[Any]) -> list[Any]:
    if each.size is None:
        return items
    return [items[at : at + each.size] for at in range(0, len(items), each.size)]


def _values(done: Mapping[str, _Done]) -> dict[str, Any]:
    return {name: each.value for name, each in done.items()}


async def _of(future: asyncio.Future[_Done]) -> _Done:
    return await asyncio.shield(future)


def _around(flow: _Flow | None) -> Iterable[_Flow]:
    while flow is not None:
        yield flow
        flow = flow.around


async def _breakable(
    what: Coroutine[Any, Any, Any], flow: _Flow, kind: Literal["calls", "sleeps"] = "calls"
) -> Any:
    """Wait for what changes nothing, and may be broken off where what is around it is over."""
    task = asyncio.ensure_future(what)
    flows = list(_around(flow))
    held: list[set[asyncio.Task[Any]]] = [getattr(each, kind) for each in flows]
    for each in held:
        each.add(task)
    try:
        return await task
    except asyncio.CancelledError:
        if any(each.over for each in flows) and not _is_cancelled():
            raise _NotReached from None
        task.cancel()
        raise
    finally:
        for each in held:
            each.discard(task)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def _cancelling(tasks: Iterable[asyncio.Task[Any]]) -> Generator[None]:
    """Where the one who waits is cancelled, so are those."""
    try:
        yield
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise


def _raise_halts(ended: Iterable[object]) -> None:
    for kind in (SessionHalted, Halt, asyncio.CancelledError):
        for each in ended:
            if isinstance(each, kind) and not isinstance(each, Waits):
                raise each


def _raise_first(ended: Iterable[object]) -> None:
    """Raise what ends a block: a halt before a failure, that before a wait."""
    failed = [each for each in ended if isinstance(each, BaseException)]
    _raise_halts(sorted(failed, key=lambda each: isinstance(each, SessionHalted)))
    for each in failed:
        if not isinstance(each, (_NotReached, Waits, _Lost)):
            raise each
    waits = [each for each in failed if isinstance(each, Waits)]
    if waits:
        raise Waits.both(waits)
    if failed:
        raise failed[0]
