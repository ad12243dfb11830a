"""Each command that a message of core names can be copied, and does what the message says."""

import ast
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rollcage
import shop_runs as shop
from cuts import cut_log
from rollcage import Session, abandon_run, open_store, tool
from rollcage.errors import RollcageError
from rollcage.stages import once, orders
from rollcage.stages.queue import ApprovalQueue, QueueApprover

NAMES = "abandon|approve|once|pause|resolve|show|stop|undo|unpause"
COMMAND = re.compile(rf"rollcage ((?:{NAMES}) [^;\n`]*)")


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> None:
    shop.shelf.clear()
    shop.program_file(tmp_path)


def said(do: Callable[[], object]) -> str:
    """What an error says."""
    try:
        do()
    except RollcageError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def again(store: Path, *calls: Callable[[], Any], **options: Any) -> Callable[[], None]:
    """Another attempt at the job, which makes these calls."""

    def program() -> None:
        with Session("job", store=store, **options):
            for call in calls:
                call()

    return program


# --- what messages there are ---------------------------------------------------------------------


def unknown(store: Path) -> str:
    shop.died(store)
    return said(again(store, lambda: shop.add("pen"), lambda: shop.dies("ink")))


def may_have_happened(store: Path) -> str:
    shop.unclear(store)
    return said(again(store, lambda: shop.add("pen"), lambda: shop.fails("ink")))


def lossy(store: Path) -> str:
    shop.lossy(store)
    return said(again(store, lambda: shop.holds("ink")))


def diverged(store: Path) -> str:
    shop.crashed(store)
    return said(again(store, lambda: shop.look("pen"), lambda: shop.mail("ann")))


def not_taken_back(store: Path) -> str:
    with pytest.raises(ConnectionError), Session("job", store=store):
        shop.mail("ann")
        raise ConnectionError
    return said(again(store, lambda: shop.add("pen"), on_divergence="undo"))


def block_stays(store: Path) -> str:
    def program() -> None:
        with Session("job", store=store) as session, session.transaction():
            shop.mail("ann")
            raise ValueError("take that back")

    return said(program)


broken: list[bool] = []


@tool(effect="write", name="remedies.half", raises=(OSError,))
def half(item: str) -> None:
    if broken:
        raise OSError("busy")
    shop.shelf.remove(item)


@tool(
    effect="write",
    name="remedies.give",
    undo=lambda args: [rollcage.compensate(half, item=args["item"])],
)
def give(item: str) -> None:
    shop.shelf.append(item)


def half_undone(store: Path) -> str:
    broken[:] = [True]
    with pytest.raises(RollcageError), Session("job", store=store) as session:
        give("pen")
        session.undo()
        shop.add("ink")
    message = said(again(store, lambda: shop.add("ink")))
    broken.clear()
    return message


def stopped(store: Path) -> str:
    run = shop.crashed(store)
    orders.stop_run(store, run, by="ann", reason="enough")
    return said(again(store, lambda: shop.add("ink")))


def stopped_not_paused(store: Path) -> str:
    run = shop.crashed(store)
    orders.stop_run(store, run, by="ann")
    return said(lambda: orders.pause_run(store, run))


def paused_not_stopped(store: Path) -> str:
    run = shop.crashed(store)
    orders.pause_run(store, run, by="ann")
    return said(lambda: orders.lift_stop(store, run))


def over(store: Path) -> str:
    run = shop.finished(store)
    return said(lambda: orders.stop_run(store, run))


def waits(store: Path) -> str:
    run = shop.asked(store)
    (request,) = ApprovalQueue(store).waiting()
    assert request.run == run
    return said(
        again(
            store,
            lambda: shop.add("pen"),
            lambda: shop.mail("ann", "hello"),
            gate=[shop.ask_first],
            approver=QueueApprover(store),
            actor="agent",
        )
    )


def abandoned(store: Path) -> str:
    run = shop.crashed(store)
    abandon_run(store, run)
    return said(again(store, replay="resume"))


def abandoned_before(store: Path) -> str:
    run = shop.crashed(store)
    abandon_run(store, run)
    return said(lambda: abandon_run(store, run))


def too_old(store: Path) -> str:
    shop.crashed(store)
    return said(again(store, options=rollcage.Options(resume_within=1e-6)))


def once_unknown(store: Path) -> str:
    shop.claimed(store)
    return said(again(store, lambda: shop.refund(7)))


def once_flying(store: Path) -> str:
    begun, go_on = threading.Event(), threading.Event()

    def slow(payment: int, amount: int) -> dict[str, int]:
        begun.set()
        assert go_on.wait(20)
        return {"refunded": 10}

    def other() -> None:
        with Session("other", store=store) as session:
            session.run_call(vars(shop.refund)["__rollcage_contract__"], {"payment": 7}, slow)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert begun.wait(20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(once, "PATIENCE", 0.01)
            return said(again(store, lambda: shop.refund(7)))
    finally:
        go_on.set()
        thread.join()


def once_kept(store: Path) -> str:
    shop.claimed(store)
    found = once.once_of(store, "refund/7")
    assert found is not None
    return said(lambda: once.keep_claims(open_store(store), found.run))


@tool(
    effect="write",
    name="remedies.pay",
    once="pay/{n}",
    undo=lambda args: [rollcage.compensate(half, item=f"n{args['n']}")],
)
def pay(n: int) -> None:
    shop.shelf.append(f"n{n}")


def once_being_undone(store: Path) -> str:
    broken[:] = [True]
    with pytest.raises(RollcageError), Session("job", store=store) as session:
        pay(7)
        session.undo()
        shop.add("ink")
    broken.clear()
    path = next(Path(store).glob(f"*/{session.run_id}.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    (begun,) = [n for n, line in enumerate(lines) if line.startswith(b'{"event":"undoing"')]
    cut_log(path, begun + 1)  # killed before the first compensating call
    found = once.once_of(store, "pay/7")
    assert found is not None
    return said(lambda: found.resolve(happened=True))


MESSAGES = [
    unknown, may_have_happened, lossy, diverged, not_taken_back, block_stays, half_undone, stopped,
    stopped_not_paused, paused_not_stopped, over, waits, abandoned, abandoned_before, too_old,
    once_unknown, once_flying, once_kept, once_being_undone,
]  # fmt: skip


def commands(message: str) -> list[list[str]]:
    return [shlex.split(each[1].replace("JSON", "1")) for each in COMMAND.finditer(message)]


def choices() -> Iterator[Any]:
    """Each command of each message: a message may name several ways out."""
    many = {
        unknown: 2, too_old: 2, may_have_happened: 2, half_undone: 2, once_unknown: 2, once_kept: 2,
        diverged: 2,
    }  # fmt: skip
    for message in MESSAGES:
        for n in range(many.get(message, 1)):
            yield pytest.param(message, n, id=f"{message.__name__}-{n}")


@pytest.mark.parametrize("place", [".rollcage", "other runs"])
@pytest.mark.parametrize(("message", "n"), [*choices()])
def test_the_command_can_be_copied(
    cli: Any, tmp_path: Path, message: Callable[[Path], str], n: int, place: str
) -> None:
    text = message(tmp_path / place)
    words = commands(text)[n]
    if words[0] == "undo":
        words += ["--yes", "--tools", "shop_runs", "--tools", __name__]
    result = cli(*words)
    assert result.code == 0, (text, words, result.err, result.out)
    assert not (tmp_path / ".rollcage").exists() or place == ".rollcage"


def test_every_command_in_core_is_tried(tmp_path: Path) -> None:
    """Each text of a run's rooms that names a command is part of one of these messages."""
    told = [message(tmp_path / message.__name__) for message in MESSAGES]
    missed = [
        f"{path.name}: {text}"
        for room in ("calls", "replay", "session", "stages", "trace", "undo")
        for path in (Path(rollcage.__file__).parent / room).rglob("*.py")
        for text in texts(ast.parse(path.read_text()))
        if not any(re.search(text, each) for each in told)
    ]
    assert missed == []


def texts(tree: ast.Module) -> Iterator[str]:
    """The commands in a module's texts, as patterns of what they become."""
    docs = {
        part
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr | ast.Expr)
        for part in ast.walk(each)
        if part is not each and isinstance(part, ast.Constant)
    }
    for each in ast.walk(tree):
        pattern = ""
        if isinstance(each, ast.JoinedStr):
            pattern = "".join(
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else "\0"
                for part in each.values
            )
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in docs:
            pattern = re.escape(each.value)
        for found in re.finditer(rf"rollcage\\ (?:{NAMES})\b[^;\n]*", pattern):
            yield found[0].replace("\0", ".*?")


# --- and then it goes on -------------------------------------------------------------------------


def test_what_happened_is_not_done_again(cli: Any, store: Path) -> None:
    words = commands(unknown(store))
    assert cli(*words[0], "--result", '"bought"').code == 0
    given: list[str] = []
    again(store, lambda: shop.add("pen"), lambda: given.append(shop.dies("ink")))()
    assert given == ["bought"]


def test_what_did_not_happen_is_done(
    cli: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = commands(unknown(store))
    assert cli(*words[1]).code == 0
    monkeypatch.setenv("SHOP", "open")
    given: list[str] = []
    again(store, lambda: shop.add("pen"), lambda: given.append(shop.dies("ink")))()
    assert given == ["bought ink"]


def test_an_undo_takes_back_what_lies_ahead(cli: Any, store: Path) -> None:
    words, _ = commands(diverged(store))
    assert shop.shelf == ["pen"]
    assert cli(*words, "--yes").code == 0
    again(store, lambda: shop.look("pen"), lambda: shop.mail("ann"))()
    assert shop.shelf == ["ann"]


def test_what_counts_as_undone_is_left_alone(cli: Any, store: Path) -> None:
    for words in commands(not_taken_back(store)):
        assert cli(*words, "--by", "ann").code == 0
    again(store, lambda: shop.add("pen"), on_divergence="undo")()
    assert shop.shelf == ["ann", "pen"]
