"""Failures out of a write of which nobody knows how far it got."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Blocked,
    DidNotHappen,
    Halt,
    Happened,
    NotReplayable,
    Session,
    StepNotUnknown,
    UnknownOutcome,
    Verdict,
    compensate,
    current_step,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.errors import PermissionUndeclared
from rollcage.gate import Approval, ApprovalRequest
from rollcage.trace.folder import Folder


class World:
    """What was paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.keys: list[str] = []
        self.fails = 0
        self.error: Callable[[], Exception] = lambda: KeyError("who knows")
        self.before = False  # whether it fails before it has paid
        self.errors: list[Exception] = []  # what the next calls fail with
        self.probe: Any = None


world = World()


@pytest.fixture(autouse=True)
def new_world() -> None:
    world.__init__()  # type: ignore[misc] # a new one of the same name


@tool(name="unclear.unpay", idempotent=True)
def unpay(n: int) -> None:
    """Take a payment back."""
    world.paid.remove(n)


def paying(n: int) -> str:
    step = current_step()
    world.keys.append(step.idempotency_key if step else "")
    if world.fails and world.before:
        world.fails -= 1
        raise world.error()
    world.paid.append(n)
    if world.fails:
        world.fails -= 1
        raise world.error()
    return f"paid {n}"


@tool(name="unclear.pay", raises=[ValueError])
def pay(n: int) -> str:
    """Pay; nobody can ask about it."""
    return paying(n)


@tool(
    name="unclear.probed",
    probe=lambda key: world.probe(key) if callable(world.probe) else world.probe,
    undo=lambda result, args: [compensate(unpay, n=args["n"])],
)
def probed(n: int) -> str:
    """Pay; it can be asked about."""
    return paying(n)


@tool(name="unclear.seen", observe=lambda args: {"paid": world.paid.count(args["n"])})
def seen(n: int) -> str:
    """Pay; it can be seen."""
    return paying(n)


@tool(name="unclear.idem", idempotent=True)
def idem(n: int) -> str:
    """Pay under a key."""
    return paying(n)


@tool(name="unclear.look", effect="read")
def look() -> int:
    """Look what was paid."""
    return len(world.paid)


def events(root: Path, run: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Folder(root).read(run)]


def twice(call: Callable[[int], str]) -> list[Any]:
    """An agent that makes a failed call once more."""
    said: list[Any] = []
    for _ in range(2):
        try:
            said.append(call(7))
            break
        except (KeyError, ValueError) as error:
            said.append(type(error).__name__)
            said.append(look())
    return said


@pytest.mark.parametrize(
    "error",
    [
        lambda: ValueError("named in raises="),
        lambda: ConnectionRefusedError("nothing was sent"),
        lambda: PermissionUndeclared("not there", "fs:write:/etc"),
        lambda: Blocked("no", rule="r", code="c"),
    ],
)
def test_what_was_refused_is_clean(tmp_path: Path, error: Callable[[], Exception]) -> None:
    world.fails, world.before, world.error = 1, True, error
    with Session("job", store=tmp_path) as session:
        with pytest.raises(type(error())):
            pay(7)
        assert pay(7) == "paid 7"
    assert world.paid == [7]
    assert not any("unclear" in (e.get("outcome") or ()) for e in events(tmp_path, session.run_id))


def test_the_agent_goes_on_and_the_same_call_halts(tmp_path: Path) -> None:
    world.fails = 1
    again = pytest.raises(UnknownOutcome, match="it may have happened already")
    with again as halt, Session("job", store=tmp_path):
        with pytest.raises(KeyError):
            pay(7)
        assert pay(8) == "paid 8"
        pay(7)
    assert world.paid == [7, 8]
    resolve_step(tmp_path, halt.value.run, halt.value.step, happened=True, result="was paid")
    with Session("job", store=tmp_path) as session:
        with pytest.raises(KeyError):  # it was acted upon
            pay(7)
        pay(8)
        assert pay(7) == "was paid"  # and the same call is answered
        assert session.stats.supplied == 1
    with Session("job", store=tmp_path, replay="continue"):
        with pytest.raises(KeyError):
            pay(7)
        pay(8)
        assert pay(7) == "was paid"
        assert pay(7) == "paid 7"  # a new one
    assert world.paid == [7, 8, 7]


def test_it_did_not_happen_so_it_is_made(tmp_path: Path) -> None:
    world.fails, world.before = 1, True
    with pytest.raises(UnknownOutcome) as halt, Session("job", store=tmp_path):
        twice(pay)
    resolve_step(tmp_path, halt.value.run, halt.value.step, happened=False)
    for _ in range(2):
        with Session("job", store=tmp_path, replay="continue"):
            assert twice(pay) == ["KeyError", 0, "paid 7"]
    assert world.paid == [7]


def test_an_outcome_found_out_later_does_not_answer_a_call_for_which_it_is_taken_back(
    tmp_path: Path,
) -> None:
    world.fails = 1
    with pytest.raises(ZeroDivisionError), Session("job", store=tmp_path) as session:
        with pytest.raises(KeyError):
            probed(7)
        idem(8)  # so the failure was acted upon
        raise ZeroDivisionError
    resolve_step(tmp_path, session.run_id, 1, happened=True, result="paid 7")
    resolve_step(tmp_path, session.run_id, 2, undone=True)
    session = Session("job", store=tmp_path, on_divergence="undo")
    with session, session.branch("elsewhere"):
        assert probed(7) == "paid 7"
    assert world.paid == [8, 7]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("happened", [True, False])
def test_a_probe_is_asked_at_once(tmp_path: Path, happened: bool, is_async: bool) -> None:
    world.fails, world.before = 1, not happened
    world.probe = Happened("found out") if happened else DidNotHappen()

    async def run() -> Any:
        async with Session("job", store=tmp_path) as session:
            try:
                return await session.acall(probed, n=7)
            except KeyError:
                return await session.acall(probed, n=7)

    if is_async:
        said = asyncio.run(run())
    else:
        with Session("job", store=tmp_path):
            said = twice(probed)[-1]
    assert said == ("found out" if happened else "paid 7")
    assert world.paid == [7]
    run_id = Folder(tmp_path).get("names", "job")
    assert run_id is not None
    assert undo_run(tmp_path, run_id.decode()).complete
    assert world.paid == []


def test_what_a_probe_finds_out_later_answers_the_same_call(tmp_path: Path) -> None:
    world.fails = 1
    asked: list[str] = []

    def probe(key: str) -> Any:
        asked.append(key)
        return None if len(asked) < 2 else Happened("found out")

    world.probe = probe
    for _ in range(2):
        with Session("job", store=tmp_path, replay="continue"):
            assert twice(probed) == ["KeyError", 1, "found out"]
    assert world.paid == [7]
    assert len(asked) == 2
    assert len(set(asked)) == 1
    run = Folder(tmp_path).get("names", "job")
    assert run is not None
    assert undo_run(tmp_path, run.decode()).complete  # the first one's effect is taken back
    assert world.paid == []


def test_killed_between_what_was_found_out_and_the_answer(tmp_path: Path) -> None:
    """Each line of the log is the last one once; what happened is never made again."""
    world.fails = 1
    asked: list[str] = []

    def probe(key: str) -> Any:
        asked.append(key)
        return None if len(asked) < 2 else Happened("found out")

    world.probe = probe
    with Session("job", store=tmp_path / "whole") as session:
        twice(probed)
    lines = Folder(tmp_path / "whole").read(session.run_id)
    begun = next(n for n, line in enumerate(lines) if b'"event":"step"' in line)
    for count in range(begun + 1, len(lines) + 1):
        root = tmp_path / str(count)
        (root / "logs").mkdir(parents=True)
        (root / "logs" / f"{session.run_id}.jsonl").write_bytes(b"".join(lines[:count]))
        world.fails, world.probe = 0, Happened("found out")
        with Session("job", store=root, run=session.run_id, replay="continue"):
            assert twice(probed)[-1] == "found out", count
        assert world.paid == [7], count


def test_the_state_as_before_is_clean_another_one_is_not(tmp_path: Path) -> None:
    world.fails, world.before = 1, True
    with Session("job", store=tmp_path):
        assert twice(seen)[-1] == "paid 7"
    world.fails, world.before = 1, False
    with pytest.raises(UnknownOutcome), Session("other", store=tmp_path):
        twice(seen)
    assert world.paid == [7, 7]


def test_an_idempotent_call_is_made_again_under_the_same_key(tmp_path: Path) -> None:
    world.fails = 1
    for _ in range(2):
        with Session("job", store=tmp_path, replay="continue"):
            assert twice(idem) == ["KeyError", 1, "paid 7"]
    assert len(world.keys) == 2
    assert len(set(world.keys)) == 1
    with Session("job", store=tmp_path, replay="continue"):
        twice(idem)
        idem(7)  # another one
    assert len(set(world.keys)) == 2


# --- one key for one effect ----------------------------------------------------------------------


@tool(name="unclear.keyed", idempotent=True, raises=[ValueError])
def keyed(n: int) -> str:
    """Pay under a key, or fail as the world says."""
    step = current_step()
    world.keys.append(step.idempotency_key if step else "")
    if world.errors:
        raise world.errors.pop(0)
    return f"paid {n}"


def tried(n: int = 7) -> str:
    """Make the call once, and look around."""
    try:
        said = keyed(n)
    except (KeyError, ValueError, ConnectionRefusedError) as error:
        said = type(error).__name__
    look()
    return said


def which() -> str:
    """Return the keys that the tool was called with, as letters in their order."""
    names = {key: chr(ord("a") + at) for at, key in enumerate(dict.fromkeys(world.keys))}
    return "".join(names[key] for key in world.keys)


def test_the_key_is_used_up_by_a_success(tmp_path: Path) -> None:
    world.errors = [KeyError()]
    with Session("job", store=tmp_path):
        assert [tried(), tried(), tried()] == ["KeyError", "paid 7", "paid 7"]
    assert which() == "aab"


def test_a_repetition_that_was_not_sent_says_nothing_of_the_first(tmp_path: Path) -> None:
    world.errors = [KeyError(), ConnectionRefusedError()]
    with Session("job", store=tmp_path) as session:
        assert [tried() for _ in range(4)][2:] == ["paid 7", "paid 7"]
    assert which() == "aaab"
    ended = [e for e in events(tmp_path, session.run_id) if e["event"] == "outcome"]
    assert [e["outcome"].get("unclear", False) for e in ended] == [True, True, False, False]


def test_a_named_error_under_the_same_key_is_an_answer(tmp_path: Path) -> None:
    world.errors = [KeyError(), ValueError("declined")]
    with Session("job", store=tmp_path):
        assert [tried() for _ in range(3)] == ["KeyError", "ValueError", "paid 7"]
    assert which() == "aab"


def test_a_failure_at_the_end_is_made_again_under_its_key_once(tmp_path: Path) -> None:
    world.errors = [KeyError(), ConnectionRefusedError()]
    with pytest.raises(KeyError), Session("job", store=tmp_path):
        keyed(7)
    with Session("job", store=tmp_path):
        assert [tried() for _ in range(3)] == ["ConnectionRefusedError", "paid 7", "paid 7"]
    assert which() == "aaab"


def test_a_denied_repetition_leaves_the_key(tmp_path: Path) -> None:
    world.errors = [KeyError()]
    said = [False, True]
    gate = [lambda step: Verdict.ask("money") if step.run.calls >= 2 else Verdict.allow()]
    with Session(
        "job", store=tmp_path, gate=gate, approver=lambda _: Approval(said.pop(0), by="ann")
    ):
        tried()
        with pytest.raises(Blocked):
            keyed(7)
        assert keyed(7) == "paid 7"
    assert which() == "aa"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_calls_that_were_issued_at_once_repeat_none_of_each_other(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    world.errors = [KeyError(), KeyError()]

    def both(session: Session) -> None:
        with session.turn() as turn:
            for slot in order:
                with turn.slot(slot):
                    tried()

    with Session("job", store=tmp_path) as session:
        both(session)
        both(session)
    assert which() == "abab"


@pytest.mark.parametrize("says", [True, False])
def test_an_approver_is_asked_whether_it_is_made_again(tmp_path: Path, says: bool) -> None:
    world.fails, world.before = 1, True
    asked: list[str] = []

    def approver(request: ApprovalRequest) -> Approval:
        asked.append(request.verdict.reason)
        return Approval(says, by="ann")

    def program() -> list[Any]:
        try:
            return twice(pay)
        except Blocked:
            return ["blocked"]

    for _ in range(2):
        with Session("job", store=tmp_path, approver=approver, replay="continue"):
            assert program() == (["KeyError", 0, "paid 7"] if says else ["blocked"])
    assert world.paid == ([7] if says else [])
    assert "may have happened already" in asked[0]


def test_a_rule_and_the_doubt_are_asked_about_together(tmp_path: Path) -> None:
    world.fails, world.before = 1, True
    asked: list[str] = []

    def approver(request: ApprovalRequest) -> Approval:
        asked.append(request.verdict.reason)
        return Approval(True, by="ann")

    gate = [
        lambda step: (
            Verdict.ask("it is money") if step.contract.effect == "write" else Verdict.allow()
        )
    ]
    with Session("job", store=tmp_path, approver=approver, gate=gate):
        assert twice(pay) == ["KeyError", 0, "paid 7"]
    assert asked[0] == "it is money"
    assert asked[1].startswith("it is money; it may have happened already")


# --- what is inside of a write -------------------------------------------------------------------


@tool(name="unclear.fetch", effect="read")
def fetch(error: str) -> str:
    """Read something, which fails."""
    raise {"lost": TimeoutError, "other": KeyError}[error](error)


@tool(name="unclear.outer")
def outer(error: str) -> str:
    """Write, and read inside of it."""
    world.paid.append(0)
    return fetch(error)


@tool(name="unclear.booking")
def booking(n: int) -> str:
    """Write by another write, then be refused."""
    pay(n)
    raise Blocked("no", rule="r", code="c")


def test_a_lost_read_inside_leaves_the_write_unclear_not_unknown(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with pytest.raises(TimeoutError):
            outer("lost")
        assert pay(7) == "paid 7"  # the agent goes on
    outcomes = [e["outcome"] for e in events(tmp_path, session.run_id) if e["event"] == "outcome"]
    assert outcomes[0].get("unclear") is True


def test_what_was_refused_after_a_guarded_read_is_clean(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(effect="read")
    def look() -> None:
        ran.append("look")

    @tool
    def send() -> None:
        look()
        ran.append("send")
        if ran.count("send") == 1:
            raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError), Session("job", store=tmp_path):
        send()
    with Session("job", store=tmp_path):  # without anybody to be asked
        send()
    assert ran.count("send") == 2


def test_what_was_refused_after_a_guarded_effect_is_not_clean(tmp_path: Path) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path):
        with pytest.raises(Blocked):
            booking(7)
        booking(7)
    assert world.paid == [7]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ConnectionResetError("gone")])
def test_a_lost_answer_halts_at_once(tmp_path: Path, error: Exception) -> None:
    world.fails, world.error = 1, lambda: error
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path):
        with pytest.raises(type(error)):
            probed(7)
        pytest.fail("it goes on") if pay(8) else None
    assert world.paid == [7]


def test_a_block_inside_of_a_body_is_a_part_of_it(tmp_path: Path) -> None:
    numbers: list[int | None] = []

    @tool(name="unclear.blocks")
    def blocks() -> str:
        with session.branch("b"):
            step = current_step()
            numbers.append(None if step is None else step.number)
            return fetch("lost")

    with Session("job", store=tmp_path) as session:
        with pytest.raises(TimeoutError):
            blocks()
        assert pay(7) == "paid 7"
    assert numbers == [1]


def test_a_result_that_is_not_known_can_be_put_on_record(tmp_path: Path) -> None:
    world.fails = 1
    with pytest.raises(UnknownOutcome) as halt, Session("job", store=tmp_path):
        twice_at_once()
    run, step = halt.value.run, halt.value.step
    resolve_step(tmp_path, run, step, happened=True)
    with pytest.raises(NotReplayable, match="--result"), Session("job", store=tmp_path):
        pay(7)
    resolve_step(tmp_path, run, step, happened=True, result="by hand")
    with pytest.raises(StepNotUnknown):
        resolve_step(tmp_path, run, step, happened=True, result="another")
    with Session("job", store=tmp_path):
        assert pay(7) == "by hand"


def twice_at_once() -> None:
    with pytest.raises(KeyError):
        pay(7)
    pay(7)


def test_a_probe_is_not_asked_about_another_effect(tmp_path: Path) -> None:
    """What an approver had edited ran with other arguments than those of the same call again."""
    world.fails, world.probe = 1, None
    answers = iter([Approval(True, by="ann", args={"n": 5}), Approval(False, by="ann")])

    def approver(request: ApprovalRequest) -> Approval:
        return next(answers)

    gate = [
        lambda step: Verdict.ask("money") if "probed" in step.contract.name else Verdict.allow()
    ]
    with Session("job", store=tmp_path, approver=approver, gate=gate):
        with pytest.raises(KeyError):
            probed(7)
        world.probe = DidNotHappen()  # of 7, which is true, and says nothing of 5
        with pytest.raises(Blocked):
            probed(7)
    assert world.paid == [5]


@pytest.mark.parametrize("asks", ["probe", "observe"])
def test_a_halt_of_what_is_asked_stays_itself(tmp_path: Path, asks: str) -> None:
    halts: list[str] = []

    def look(args: dict[str, Any]) -> dict[str, Any]:
        if asks in halts:
            raise Halt("not now")
        return {f"paid {args['n']}": args["n"] in world.paid}

    def probe() -> None:
        look({"n": 0})

    declared: dict[str, Any] = {"observe": look} if asks == "observe" else {"probe": probe}

    @tool(name="unclear.halts", **declared)
    def pay(n: int) -> None:
        raise TimeoutError("no answer")

    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path):
        pay(7)
    halts.append(asks)
    with pytest.raises(Halt, match="not now"), Session("job", store=tmp_path):
        pay(7)
