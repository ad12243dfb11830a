"""What a framework's own history shows as answered is used up, and nobody asks for it again."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    ApprovalRequired,
    Diverged,
    Halt,
    Options,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    tool,
)
from rollcage.calls.memory import restart
from rollcage.contract.contract import Contract
from rollcage.trace.folder import Folder

world: list[str] = []


class PowerCutError(Exception):
    """Ends an attempt on its way."""


@pytest.fixture(autouse=True)
def nothing() -> None:
    world.clear()


@tool(name="memory.write", effect="write")
def write(text: str) -> str:
    world.append(text)
    return f"wrote {text}"


@tool(name="memory.look", effect="read")
def look(text: str) -> str:
    return f"saw {text}"


@tool(name="memory.delegate", effect="scope")
def delegate(work: list[str]) -> str:
    for text in work:
        write(text)
    return "delegated"


MODEL = Contract(name="model", parameters={"properties": {"turn": {}}}, framework="test")


def test_a_call_behind_one_that_is_still_to_be_asked_for_is_seen_later(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        write("a")
        with session.place(call_id="c1"):
            write("b")
        raise PowerCutError
    with Session("job", store=tmp_path) as session:
        session.seen({None: ["c1"]})
        assert session.stats.seen == 0  # it can't be taken as done yet
        assert write("a") == "wrote a"
        session.seen({None: ["c1"]})
        assert session.stats.seen == 1
        write("c")
    assert world == ["a", "b", "c"]


Deed = tuple[Any, str]
Program = list[list[Deed]]


def _answer(turn: int) -> int:
    return turn


class Agent:
    """A framework's agent: it remembers which calls of its messages were answered."""

    def __init__(self, program: Program, name: str = "", done: int = 0, ids: str = "") -> None:
        self.program, self.name, self.ids = program, name, ids
        self.history = [f"{turn}.{slot}" for turn in range(done) for slot in
                        range(len(program[turn]))]  # fmt: skip
        self.done = done

    def run(self, session: Session, dies: Callable[[], None] = lambda: None) -> list[str]:
        """Go on with the first turn that its memory does not hold."""
        given: list[str] = []
        for number in range(self.done, len(self.program)):
            session.seen({self.name: self.history})
            with session.place(agent=self.name):
                session.run_call(MODEL, {"turn": number}, _answer, kind="model")
            for slot, (tool_, text) in enumerate(self.program[number]):
                call_id = f"{self.ids}{number}.{slot}"
                turn = self.name, number
                with session.place(turn=turn, slot=slot, agent=self.name, call_id=call_id):
                    given.append(session.call(tool_, text=text))
                self.history.append(call_id)
                dies()
        return given


PROGRAM: Program = [
    [(write, "a")],
    [(write, "b"), (look, "x"), (write, "c")],
    [(look, "y")],
    [(write, "d")],
]
TEXTS = [text for turn in PROGRAM for tool_, text in turn if tool_ is write]


def after(calls: int) -> Callable[[], None]:
    left = itertools.count(1)

    def dies() -> None:
        if next(left) == calls:
            raise PowerCutError

    return dies


@pytest.mark.parametrize("asked_again", range(1, 6))
@pytest.mark.parametrize("died", range(1, 7))
def test_a_history_has_the_ids_under_which_the_model_asked_again(
    tmp_path: Path, died: int, asked_again: int
) -> None:
    """A model whose answers are not recorded gives each call another id when it is asked again."""
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM, ids="first-").run(session, after(died))
    second = Agent(PROGRAM, ids="second-")  # its history was not saved
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        second.run(session, after(asked_again))
    done = [turn for turn in range(4) if f"second-{turn}.0" in second.history]
    if len(second.history) < sum(len(PROGRAM[turn]) for turn in done):
        done.pop()  # a turn is saved as a whole
    third = Agent(PROGRAM, ids="third-", done=len(done))
    third.history = [each for each in second.history if int(each[7]) in done]
    answered = len(done) + len(third.history)
    with Session("job", store=tmp_path) as session:
        third.run(session)
    assert (world, session.stats.seen) == (TEXTS, answered)


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_what_its_memory_holds_is_not_asked_for(tmp_path: Path, turns: int) -> None:
    calls = sum(map(len, PROGRAM[:turns]))
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM).run(session, after(calls))
    with Session("job", store=tmp_path) as again:
        Agent(PROGRAM, done=turns).run(again)
        again.seen({"": [f"{n}.{slot}" for n in range(4) for slot in range(len(PROGRAM[n]))]})
    assert world == TEXTS
    assert (again.stats.seen, again.stats.hits) == (calls + turns, 0)
    with Session("job", store=tmp_path, replay="offline") as offline:
        assert len(Agent(PROGRAM).run(offline)) == 6
    last = orjson.loads(Folder(tmp_path).read(session.run_id)[-1])
    assert (last["event"], last["status"]) == ("ended", "ok")


def test_a_history_is_read_as_long_as_it_may_hold_recorded_steps(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM).run(session, after(4))
    read: list[str] = []

    def history(*ids: str) -> Iterator[str]:
        for call_id in ids:
            read.append(call_id)
            yield call_id

    with Session("job", store=tmp_path) as again:
        again.seen({"": history("0.0")})
        again.seen({"": history("0.0", "1.0", "1.1", "1.2")})
        assert (len(read), again.stats.seen) == (5, 6)
        again.seen({"": history("0.0", "1.0", "1.1", "1.2", "2.0")})
        assert len(read) == 5
        Agent(PROGRAM, done=2).run(again)
    assert world == TEXTS


def test_the_world_is_that_of_calls_that_were_asked_for(tmp_path: Path) -> None:
    marks = []
    for done in (0, 3):
        store = tmp_path / str(done)
        with pytest.raises(PowerCutError), Session("job", store=store) as session:
            Agent(PROGRAM).run(session, after(5))
        with Session("job", store=store) as session:
            Agent(PROGRAM, done=done).run(session)
        lines = map(orjson.loads, Folder(store).read(session.run_id))
        marks.append([line["fingerprint"] for line in lines if line["event"] == "step"])
    assert marks[0] == marks[1]


def test_a_memory_that_was_lost_has_all_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM).run(session, after(4))
    with Session("job", store=tmp_path) as again:
        Agent(PROGRAM).run(again)
    assert world == TEXTS
    assert (again.stats.seen, again.stats.hits) == (0, 6)


def test_a_turn_that_was_cut_goes_on_with_its_slots(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM).run(session, after(2))
    with Session("job", store=tmp_path) as again:
        Agent(PROGRAM, done=1).run(again)
    assert world == TEXTS
    assert (again.stats.seen, again.stats.hits) == (2, 2)


def test_another_agent_s_ids_are_its_own(tmp_path: Path) -> None:
    def team(session: Session, done: int) -> None:
        for name in ("ann", "bob"):
            program: Program = [[(write, f"{name} {n}")] for n in range(3)]
            Agent(program, name, done).run(session)

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        team(session, 0)
        raise PowerCutError
    with Session("job", store=tmp_path) as again:
        again.seen({name: ["0.0", "1.0", "2.0"] for name in ("ann", "bob")})
        team(again, 3)
    assert len(world) == 6
    assert again.stats.seen == 12
    with Session("job", store=tmp_path, replay="continue") as once_more:
        once_more.seen({None: ["0.0", "1.0", "2.0"] * 2})  # whose they are is not known
        team(once_more, 3)
    assert (len(world), once_more.stats.seen) == (6, 12)


def test_an_id_that_comes_again_is_another_call(tmp_path: Path) -> None:
    def job(session: Session, texts: str, shown: int) -> None:
        for count, text in enumerate(texts, shown):
            session.seen({"": ["same"] * count})
            with session.place(call_id="same", turn=count):
                write(text)

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        job(session, "abc", 0)
        raise PowerCutError
    with Session("job", store=tmp_path) as again:
        job(again, "cd", 2)
    assert world == [*"abcd"]
    assert (again.stats.seen, again.stats.hits) == (2, 1)


def test_a_program_that_goes_another_way_diverges(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        Agent(PROGRAM).run(session, after(4))
    other: Program = [PROGRAM[0], [(write, "other")]]
    with pytest.raises(Diverged), Session("job", store=tmp_path) as again:
        Agent(other, done=1).run(again)
    assert world == [*"abc"]


def test_what_a_body_did_is_not_seen_outside_of_it(tmp_path: Path) -> None:
    def job(session: Session, shown: list[str]) -> None:
        session.seen({"": shown})
        if not shown:
            with session.place(call_id="1"):
                delegate(["a", "b"])
            raise PowerCutError
        with session.place(call_id="2"):
            write("c")

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        job(session, [])
    with Session("job", store=tmp_path) as again:
        job(again, ["1"])
    assert world == [*"abc"]
    assert again.stats.seen == 1


# --- a halt is no answer ---


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if step.args.get("text") == "b" else None


def halts(session: Session, exception: type[Halt]) -> None:
    with session.place(call_id="1"):
        write("a")
    with session.place(call_id="2"), pytest.raises(exception):
        write("b")
    with session.place(call_id="3"), pytest.raises(Exception, match="halted"):
        write("c")


def test_a_halt_that_a_history_holds_as_an_answer(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), Session("job", store=tmp_path, gate=[asks]) as session:
        halts(session, ApprovalRequired)
    for shown in (["1", "2"], ["1", "2", "3"]):
        with pytest.raises(Halt, match="never ran"), Session("job", store=tmp_path) as again:
            again.seen({"": shown})
    with Session("job", store=tmp_path) as again:
        again.seen({"": ["1"]})
        for number, text in ((2, "b"), (3, "c")):
            with again.place(call_id=str(number)):
                write(text)
    assert world == [*"abc"]
    with Session("job", store=tmp_path, replay="continue") as again:  # it has run by now
        again.seen({"": ["1", "2", "3"]})
    assert again.stats.seen == 3


def test_a_call_that_waits_for_a_decision_has_no_answer(tmp_path: Path) -> None:
    from rollcage.stages.queue import QueueApprover

    approver = QueueApprover(tmp_path)
    with (
        pytest.raises(ApprovalRequired),
        Session("job", store=tmp_path, gate=[asks], approver=approver) as session,
    ):
        halts(session, ApprovalRequired)
    with pytest.raises(Halt, match="never ran"), Session("job", store=tmp_path) as again:
        again.seen({"": ["1", "2"]})


def test_an_unknown_outcome_is_no_answer(tmp_path: Path) -> None:
    @tool(name="memory.lost", effect="write")
    def lost() -> None:
        raise TimeoutError

    with (
        pytest.raises(UnknownOutcome),
        Session("job", store=tmp_path) as session,
        session.place(call_id="1"),
    ):
        lost()
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path) as again:
        again.seen({"": ["1"]})


# --- attacked at random ---


@pytest.mark.parametrize("seed", range(30))
def test_random_agents_that_die_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test
    names = iter(range(1000))
    program: Program = [
        [
            (write, f"w{next(names)}") if rng.random() < 0.6 else (look, rng.choice("xyz"))
            for _ in range(rng.randint(1, 3))
        ]
        for _ in range(rng.randint(2, 5))
    ]
    done = 0
    for _ in range(rng.randint(1, 3)):
        calls = sum(map(len, program[done:]))
        agent = Agent(program, done=rng.choice([0, done]))
        if calls == 0:
            break
        with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
            agent.run(session, after(rng.randint(1, calls)))
        # Its memory holds whole turns, and may be older than the log.
        held = {call_id.partition(".")[0] for call_id in agent.history}
        whole = [n for n, turn in enumerate(program) if str(n) in held
                 and sum(c.startswith(f"{n}.") for c in agent.history) == len(turn)]  # fmt: skip
        done = rng.choice([n + 1 for n in whole] or [0])
    with Session("job", store=tmp_path) as session:
        Agent(program, done=done).run(session)
    assert world == [text for turn in program for tool_, text in turn if tool_ is write]


def test_named_turns_hold_in_tasks_of_their_own(tmp_path: Path) -> None:
    @tool(name="memory.awrite", effect="write")
    async def awrite(text: str) -> str:
        await asyncio.sleep(0)
        world.append(text)
        return text

    async def one(session: Session, turn: str, slot: int, text: str) -> str:
        with session.place(turn=turn, slot=slot, call_id=f"{turn}{slot}"):
            return str(await session.acall(awrite, text=text))

    async def job(order: list[int], replay: Any) -> list[str]:
        async with Session("job", store=tmp_path, replay=replay) as session:
            given = await asyncio.gather(*(one(session, "t1", n, "same") for n in order))
            return [*given, await one(session, "t2", 0, "same")]

    asyncio.run(job([0, 1, 2], "auto"))
    asyncio.run(job([2, 0, 1], "resume"))
    asyncio.run(job([1, 2, 0], "offline"))
    assert world == ["same"] * 4


def test_lines_of_sessions_without_a_framework_say_nothing_more(tmp_path: Path) -> None:
    with pytest.raises(ApprovalRequired), Session(
        "job", store=tmp_path, gate=[asks], options=Options(seed="s")
    ) as session:  # fmt: skip
        write("b")
    events = [orjson.loads(line)["event"] for line in Folder(tmp_path).read(session.run_id)]
    assert events == ["run", "attempt", "ended"]


def test_a_block_that_a_framework_starts_over_is_not_past(tmp_path: Path) -> None:
    def first(session: Session) -> None:
        with session.branch("first"):
            write("a")

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        with session.turn() as turn, turn.slot(0):
            first(session)
        raise PowerCutError
    with Session("job", store=tmp_path) as session, session.turn() as turn:
        with turn.slot(0):
            first(session)
        attempt = session.place_here().attempt
        restart(attempt, [step for step in attempt.run.steps.values() if step.effect == "write"])
        with turn.slot(1), session.branch("second"):
            write("b")
        with turn.slot(0):
            first(session)
    assert world == ["a", "b"]
    with (
        pytest.raises(Diverged),
        Session("job", store=tmp_path, replay="continue") as session,
        session.turn() as turn,
    ):
        with turn.slot(0), session.branch("first"):
            pass
        with turn.slot(2), session.branch("third"):
            write("c")


def test_a_block_started_over_ends_when_left(tmp_path: Path) -> None:
    """It is open again, so none of its writes ends it."""

    def first(session: Session, *texts: str) -> None:
        with session.branch("first"):
            for each in texts:
                write(each)

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        with session.turn() as turn, turn.slot(0):
            first(session, "a")
        raise PowerCutError
    with Session("job", store=tmp_path) as session, session.turn() as turn:
        with turn.slot(0):
            first(session, "a")
        attempt = session.place_here().attempt
        restart(attempt, [step for step in attempt.run.steps.values() if step.effect == "write"])
        with turn.slot(0):
            first(session, "a", "b", "c")
    assert world == ["a", "b", "c"]
    ended = [
        event["step"]
        for event in map(orjson.loads, Folder(tmp_path).read(session.run_id))
        if event["event"] == "outcome"
    ]
    assert ended == [2, 1, 3, 4, 1]


def test_equal_questions_are_counted_where_work_is_started_over(tmp_path: Path) -> None:
    asked = itertools.count(1)

    def ask(session: Session) -> Any:
        return session.run_call(MODEL, {}, lambda: f"answer {next(asked)}", kind="model")

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        write("a")
        assert [ask(session), ask(session)] == ["answer 1", "answer 2"]
        raise PowerCutError
    with Session("job", store=tmp_path) as session:
        write("a")
        said = [ask(session)]
        attempt = session.place_here().attempt
        restart(attempt, [attempt.run.steps[1]])
        write("a")
        said.append(ask(session))
    assert said == ["answer 1", "answer 2"]
    assert world == ["a"]
