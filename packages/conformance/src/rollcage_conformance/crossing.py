"""The cases of the matrix, recorded in one framework and replayed in another, and the comparison.

`Matrix.cross` records a case with one harness and replays it with another, in one store. No body
may run, the keys have to be equal, and the model has to be shown the same texts as when the
replaying framework runs the same scenario alone, with nothing recorded and nothing guarded.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rollcage import tool

from rollcage_conformance.scenario import Capabilities, Harness, Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suites.outcome import FAILING
from rollcage_conformance.suites.values import PLANNED
from rollcage_conformance.tools import (
    GIVERS,
    LOOK,
    ORDER,
    PLAN,
    SEND,
    Crash,
    notes,
    polling,
)

__all__ = ["CASES", "Case", "Crossing", "Matrix", "Party", "Plot", "decided", "grouped"]

Making = Callable[[list[str]], Scenario]
"""Makes a scenario. Tools that its tools call note each execution in the list."""


@dataclasses.dataclass(frozen=True, slots=True)
class Party:
    """A framework with its adapter.

    Attributes:
        name: its name in the table.
        harness: plays scenarios.
        capabilities: its capabilities; a missing one is replaced by the nearest.
    """

    name: str
    harness: Harness
    capabilities: Capabilities = dataclasses.field(default_factory=Capabilities)

    def mode(self, wanted: Mode) -> Mode:
        """Return the framework's nearest mode."""
        if wanted == "sync":
            return "sync" if self.capabilities.sync else "sync-in-async"
        return wanted if self.capabilities.asynchronous else "sync"


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """A scenario of a case.

    Attributes:
        name: its name.
        recorded: the scenario for recording.
        replayed: the scenario for replaying, if it is another one.
        as_recorded: the model is to be shown the recorded texts: in a live run they depend on
            which of its parallel calls comes first.
        fails: some frameworks end the agent here.
    """

    name: str
    recorded: Making
    replayed: Making | None = None
    as_recorded: bool = False
    fails: bool = False

    @property
    def again(self) -> Making:
        """Return the scenario for replaying."""
        return self.replayed or self.recorded


@dataclasses.dataclass(frozen=True, slots=True)
class Crossing:
    """The result of one case between two frameworks.

    Attributes:
        recorder: the name of the recording framework.
        replayer: the name of the replaying framework.
        case: its name.
        bodies: how many bodies ran by mistake.
        keys: how many recorded calls the replaying framework made under the same key.
        calls: how many it should have made.
        reasons: the problems; empty without any.
    """

    recorder: str
    replayer: str
    case: str
    bodies: int = 0
    keys: int = 0
    calls: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it crossed."""
        return not self.reasons

    def __add__(self, other: "Crossing") -> "Crossing":
        """Return the sum of both."""
        return dataclasses.replace(
            self,
            bodies=self.bodies + other.bodies,
            keys=self.keys + other.keys,
            calls=self.calls + other.calls,
            reasons=self.reasons + other.reasons,
        )


class Matrix:
    """Crosses cases in stores of its own, below `root`.

    A framework's recording, and its live run, are played once for all its partners.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stores = 0
        self._recorded: dict[tuple[str, Plot, Mode], tuple[Path, Played]] = {}
        self._live: dict[tuple[str, Plot, Mode], Played] = {}

    def cross(self, recorder: Party, replayer: Party, case: "Case") -> Crossing:
        """Record a case in one framework and replay it in the other, in each mode of the case."""
        found = Crossing(recorder.name, replayer.name, case.name)
        for mode in case.modes:
            for plot in case.plots:
                one = case.play(self, recorder, replayer, plot, mode)
                where = f"{case.name}, {plot.name}, {mode}: "
                reasons = tuple(where + reason for reason in one.reasons)
                found += dataclasses.replace(one, reasons=reasons)
        return found

    def store(self) -> Path:
        """Return a new store."""
        self._stores += 1
        return self._root / f"store-{self._stores}"

    def recording(self, party: Party, plot: Plot, mode: Mode) -> tuple[Path, Played]:
        """Return the store of a plot recorded in a framework, and the performance."""
        at = party.name, plot, mode
        if at not in self._recorded:
            store = self.store()
            played = Stage(party.harness, store).play(plot.recorded([]), party.mode(mode))
            self._recorded[at] = store, played
        return self._recorded[at]

    def live(self, party: Party, plot: Plot, mode: Mode) -> Played:
        """Return a plot as a framework plays it without a guard."""
        at = party.name, plot, mode
        if at not in self._live:
            stage = Stage(party.harness, self.store())
            self._live[at] = stage.plain(plot.again([]), party.mode(mode))
        return self._live[at]


# --- the comparison ------------------------------------------------------------------------------


def _calls(played: Played) -> list[dict[str, Any]]:
    """Return the calls that the model requested, by turn and slot; none of a tool's body."""
    return [step for step in played.steps if step["parent"] is None]


def _compared(
    names: tuple[str, str], inner: Sequence[str], recorded: Played, replayed: Played
) -> Crossing:
    """Compare a replay with its recording: bodies, and keys."""
    old, new = ([step["key"] for step in _calls(each)] for each in (recorded, replayed))
    same = sum(one == other for one, other in zip(old, new, strict=False))
    bodies = [*replayed.ran, *inner]
    reasons: list[str] = []
    if not old:
        reasons.append("nothing was recorded")
    if bodies:
        reasons.append(f"bodies ran: {', '.join(bodies)}")
    if old != new:
        reasons.append(f"{same} of {len(old)} keys are equal, and {len(new)} calls were made")
    return Crossing(*names, "", len(bodies), same, len(old), tuple(reasons))


def _shown(replayed: Played, expected: Played, texts: Sequence[tuple[str, ...]]) -> list[str]:
    """Return how the texts for the model, and the agent's end, differ from the expected ones."""
    reasons: list[str] = []
    if replayed.seen != texts:
        reasons.append(f"the model was shown {replayed.seen}, by itself it is shown {texts}")
    ended, own = (f"{type(p.error).__name__}: {p.error}" for p in (replayed, expected))
    if ended != own:
        reasons.append(f"the agent ended with {ended}, by itself with {own}")
    if replayed.result.text != expected.result.text:
        reasons.append(f"it says {replayed.result.text!r} instead of {expected.result.text!r}")
    return reasons


def _because(crossing: Crossing, reasons: Sequence[str]) -> Crossing:
    return dataclasses.replace(crossing, reasons=(*crossing.reasons, *reasons))


def replaying(matrix: Matrix, recorder: Party, replayer: Party, plot: Plot, mode: Mode) -> Crossing:
    """Record a plot in one framework, replay it offline in the other."""
    store, recorded = matrix.recording(recorder, plot, mode)
    inner: list[str] = []
    stage = Stage(replayer.harness, store)
    replayed = stage.play(plot.again(inner), replayer.mode(mode), replay="offline")
    live = matrix.live(replayer, plot, mode)
    texts: Sequence[tuple[str, ...]] = live.seen
    if plot.as_recorded:
        texts = [(step["outcome"]["value"],) for step in _calls(recorded)]
    found = _compared((recorder.name, replayer.name), inner, recorded, replayed)
    ended = [] if plot.fails else [p.error for p in (live, recorded) if p.error is not None]
    reasons = [f"without a replay the agent ends with {error!r}" for error in ended]
    return _because(found, [*reasons, *_shown(replayed, live, texts)])


DONE: Final = 8
"""The steps that are done when the agent dies at the ninth."""


def resuming(matrix: Matrix, recorder: Party, replayer: Party, plot: Plot, mode: Mode) -> Crossing:
    """Let an agent die in one framework, another one finish the run, and a third replay it."""
    store = matrix.store()
    died = Stage(recorder.harness, store).play(plot.recorded([]), recorder.mode(mode))
    stage = Stage(replayer.harness, store)
    finished = stage.play(plot.again([]), replayer.mode(mode))
    reasons = _shown(finished, live := matrix.live(replayer, plot, mode), live.seen)
    rest = len(live.ran) - DONE
    if died.error is None or len(died.ran) != DONE:
        reasons.append(f"it did not die at step {DONE + 1}: {died.ran}, {died.error}")
    if finished.how != ["replayed"] * DONE + ["ran"] * rest or len(finished.ran) != rest:
        reasons.append(f"not {DONE} hits and the rest live: {finished.how}, {finished.ran}")
    looked = Stage(recorder.harness, store).play(
        plot.again([]), recorder.mode(mode), replay="offline"
    )
    found = _compared((recorder.name, replayer.name), (), finished, looked)
    return _because(found, reasons)


def deciding(matrix: Matrix, recorder: Party, replayer: Party, plot: Plot, mode: Mode) -> Crossing:
    """Let the decisions recorded in one framework drive an agent of the other."""
    store, recorded = matrix.recording(recorder, plot, mode)
    scenario = dataclasses.replace(plot.again([]), guarded_model=False)
    driven = Stage(replayer.harness, store).play(
        scenario, replayer.mode(mode), replay="offline", decisions="source"
    )
    reasons: list[str] = []
    if driven.script.asked:
        reasons.append(f"the scripted model was asked {driven.script.asked} times")
    if driven.error is not None:
        reasons.append(f"the agent ended with {type(driven.error).__name__}: {driven.error}")
    if driven.result.text != recorded.result.text:
        reasons.append(f"it says {driven.result.text!r} instead of {recorded.result.text!r}")
    asked, made = ([_placed(step) for step in p.steps] for p in (recorded, driven))
    if asked != made:
        reasons.append(f"it made the calls {made} instead of {asked}")
    found = _compared((recorder.name, replayer.name), (), recorded, driven)
    return _because(found, reasons)


def _placed(step: dict[str, Any]) -> tuple[Any, ...]:
    return step["turn"], step["slot"], step["name"], step["args"]


# --- the cases -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A column of the table.

    Attributes:
        name: its name.
        plots: its scenarios.
        modes: with sync tools, with async ones, or each.
        play: plays each plot.
    """

    name: str
    plots: Sequence[Plot]
    modes: Sequence[Mode] = ("sync", "async")
    play: Callable[[Matrix, Party, Party, Plot, Mode], Crossing] = replaying


def give_blocks() -> list[dict[str, str]]:
    """Give content in blocks."""
    return [{"type": "text", "text": "one"}, {"type": "text", "text": "“two”"}]


def give_artifact() -> tuple[str, dict[str, Any]]:
    """Give a line for the model, and a table for others."""
    return "2 rows", {"rows": [[1, "é"], [2, None]]}


def one_by_one(spec: ToolSpec, *arguments: dict[str, Any]) -> Making:
    """Return an agent that calls one tool, once in each message."""
    script: list[Message] = [*([(spec.name, each)] for each in arguments), "all done"]
    return lambda _: Scenario([spec], script)


def polls(*widths: int) -> Making:
    """Return an agent that asks for news, so many times in each message."""
    script: list[Message] = [*([("poll", {})] * width for width in widths), "all done"]
    return lambda _: Scenario([polling()], script)


def grouped(*messages: str) -> Making:
    """Return an agent that looks at x and y and sends the other letters, grouped by message."""
    script: list[Message] = [
        [("look", {"place": x}) if x in "xy" else ("send", {"text": x}) for x in message]
        for message in messages
    ]
    return lambda _: Scenario([SEND, LOOK], [*script, "all done"])


def nested(inner: list[str]) -> Scenario:
    """Return an agent whose tool calls a tool."""

    @tool(effect="write")
    def log(line: str) -> str:
        """Write a line down."""
        inner.append("log")
        return f"logged {line}"

    def work(job: str) -> str:
        """Do a job, and write it down."""
        return log(line=f"{job} began") + ", " + log(line=f"{job} ended")

    script: list[Message] = [[("work", {"job": "x"})], [("work", {"job": "x"})], "all done"]
    return Scenario([ToolSpec(work)], script)


def dying(count: int, end: Message) -> Making:
    """Return an agent with ten tasks, of which it does so many."""
    return lambda _: notes(*(f"part {number}" for number in range(count)), end=end)


def decided(making: Making) -> Making:
    """Return the same scenario, with the model's calls recorded."""
    return lambda inner: dataclasses.replace(making(inner), guarded_model=True)


def _gives(spec: ToolSpec) -> Plot:
    return Plot(spec.name, one_by_one(spec, {}))


_CALLS: Final = Plot("calls", grouped("a", "x", "b"))
CASES: Final[Sequence[Case]] = (
    Case("sync", [_CALLS], ["sync"]),
    Case("async", [_CALLS], ["async"]),
    Case(
        "arguments",
        [
            Plot("typed", one_by_one(PLAN, PLANNED)),
            Plot("coerced", one_by_one(ORDER, {"count": "3"}), one_by_one(ORDER, {"count": 3})),
        ],
    ),
    Case("results", [_gives(spec) for spec in GIVERS]),
    Case("blocks", [_gives(ToolSpec(give_blocks))]),
    Case("artifact", [_gives(ToolSpec(give_artifact, artifact=True))]),
    Case("errors", [dataclasses.replace(_gives(spec), fails=True) for spec in FAILING]),
    Case(
        "regrouped",
        [
            Plot("apart", grouped("aab", "xa"), grouped("a", "a", "b", "x", "a")),
            # Reads only: writes that were recorded one after the other hold in that order, and
            # parallel calls arrive in any.
            Plot("together", grouped("a", "x", "y", "x", "b"), grouped("a", "xyx", "b")),
            Plot("identical", polls(3), polls(1, 1, 1), as_recorded=True),
        ],
    ),
    Case("repeated", [Plot("polls", polls(1, 1, 1))]),
    Case("nested", [Plot("work", nested)]),
    Case(
        "resumed",
        [Plot("nine", dying(DONE, Crash("power cut")), dying(10, "all done"))],
        play=resuming,
    ),
    Case(
        "decisions",
        [
            Plot("calls", decided(grouped("a", "x", "b"))),
            Plot("parallel", decided(grouped("aab", "xa"))),
            Plot("typed", decided(one_by_one(PLAN, PLANNED))),
        ],
        play=deciding,
    ),
)
