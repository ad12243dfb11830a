"""Declared secrets never reach the store, whatever quotes them."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rollcage import Blocked, Contract, Guard, Session, Verdict, compensate, open_store, tool
from rollcage.errors import NotReplayable, SessionError
from rollcage.stages.secrets import Secrets

SECRET = "hunter2-the-second"
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing() -> None:
    ran.clear()


@tool(name="secrets.login", effect="read")
def login(password: SecretStr) -> str:
    ran.append("login")
    return "in"


@tool(name="secrets.enter", effect="read", secret=["token"])
def enter(token: str) -> str:
    ran.append("enter")
    return "in"


@tool(name="secrets.echo", effect="read")
def echo(text: str) -> Any:
    ran.append(text)
    return {"said": [text], text: 1}


@tool(name="secrets.write", effect="write")
def write(text: str) -> str:
    ran.append(text)
    return f"wrote {text}"


@tool(name="secrets.fails", effect="write", raises=[ValueError])
def fails(text: str) -> None:
    raise ValueError(f"no {text}")


def job(store: Any, **more: Any) -> Session:
    return Session("job", store=store, stages=[Secrets()], **more)


def clean(folder: Path) -> None:
    """No file in the store has the secret in it, nor in base64."""
    from base64 import b64encode

    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert SECRET.encode() not in data, path
        assert b64encode(SECRET.encode()).rstrip(b"=") not in data, path
        assert SECRET not in path.name


@pytest.mark.parametrize("way", [login, enter])
def test_in_results_errors_and_later_arguments(tmp_path: Path, way: Any) -> None:
    def program() -> None:
        way(SecretStr(SECRET) if way is login else SECRET)
        assert echo(SECRET)["said"] == [SECRET]
        with pytest.raises(ValueError, match="no "):
            fails(SECRET)
        with pytest.raises(ValueError, match="no "):
            fails(f"x{SECRET}y")

    session = job(tmp_path)
    for _ in range(3):
        session = job(tmp_path, replay="continue")
        with session:
            program()
    clean(tmp_path)
    assert session.stats.misses == 2  # what it said can't be given back; the last failure
    assert ran == [way.__name__, SECRET, SECRET, SECRET]


def test_a_write_whose_result_held_one_is_not_made_again(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True), job(tmp_path):
        warnings.simplefilter("always")
        enter(SECRET)
        assert write(SECRET) == f"wrote {SECRET}"
    with pytest.raises(NotReplayable), job(tmp_path, replay="continue"):
        enter(SECRET)
        write(SECRET)
    clean(tmp_path)
    assert ran == ["enter", SECRET]


def test_in_a_large_value(tmp_path: Path) -> None:
    with job(tmp_path):
        enter(SECRET)
        echo(SECRET + "." * 100_000)
    clean(tmp_path)


def test_in_names(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(2):
        with job(store, replay="continue") as session:
            enter(SECRET)
            with session.branch(f"for {SECRET}"), Session(f"in {SECRET}", store=store):
                write("a")
            with session.place(agent=f"agent {SECRET}", call_id=SECRET):
                write("b")
    clean(tmp_path)
    assert ran == ["enter", "a", "b"]


def test_a_hash_of_a_name_tells_nothing_of_it(tmp_path: Path) -> None:
    """What is hashed with no key can be guessed: two stores have no such hash in common."""
    keys: list[set[str]] = []
    for name in "ab":
        store = open_store(tmp_path / name)
        with job(store) as session:
            enter(SECRET)
            with session.branch(SECRET), session.transaction(f"a {SECRET}"):
                pass
            with Session(SECRET, store=store), Session("in", store=store, input=[SECRET]):
                pass
        keys.append({step.key for step in session.attempt.run.steps.values()})
    assert len(keys[0]) == 5
    assert not keys[0] & keys[1]


def test_a_branch_is_announced_and_undone_by_its_name(tmp_path: Path) -> None:
    for _ in range(2):
        with job(tmp_path, replay="continue") as session:
            enter(SECRET)
            with session.turn(opens={"x": [SECRET], SECRET: []}):
                with session.branch(SECRET) as first:
                    write("a")
                with session.branch("x", after=[first]):
                    write("b")
    assert ran == ["enter", "a", "b"]
    with job(tmp_path, replay="continue") as session:
        enter(SECRET)
        assert len(session.undo(branch=SECRET).steps) == 2  # with the step that came after it
    clean(tmp_path)


@pytest.mark.parametrize("with_stage", [False, True])
def test_in_a_run_of_its_own_that_is_made_inside(tmp_path: Path, *, with_stage: bool) -> None:
    def inside(name: str, store: str, **more: Any) -> Session:
        stages = [Secrets()] if with_stage else []
        return Session(name, store=tmp_path / store, stages=stages, **more)

    with Session("job", store=tmp_path / "outer"):
        enter(SECRET)
        for _ in range(2):
            with inside("in", "inner", input=[SECRET]) as session, session.branch(SECRET):
                assert echo(SECRET)["said"] == [SECRET]
            with inside("in", "outer", replay="off"), pytest.raises(ValueError, match="no "):
                fails(SECRET)
    clean(tmp_path)


def test_in_ids_of_calls(tmp_path: Path) -> None:
    """Observers are told none; the same id is the same, also in a framework's history."""
    told: list[Any] = []
    run = ""
    for history in ((), (), (SECRET, SECRET)):  # made; made again; seen
        with job(tmp_path, replay="continue", observers=[told.append]) as session:
            enter(SECRET)
            session.seen({f"a {SECRET}": history})
            if not history:
                for _ in range(2):
                    with session.place(call_id=SECRET, agent=f"a {SECRET}"):
                        write("a")
            write("b")
        run = session.run_id
    assert ran == ["enter", "a", "a", "b"]
    assert SECRET not in repr(told)
    assert not [line for line in open_store(tmp_path).read(run) if b'"moved"' in line]


@pytest.mark.parametrize("secret", ["error", "status", "ok"])
def test_a_secret_that_is_a_word_of_the_log(tmp_path: Path, secret: str) -> None:
    """The log stays one: how a call ended is no content."""
    for hits in (0, 4):
        with job(tmp_path, replay="continue") as session:
            enter(secret)
            write("a")
            with pytest.raises(ValueError, match="no b"):
                fails("b")
            write("c")
            assert session.stats.hits == hits
    assert ran == ["enter", "a", "c"]


@tool(name="secrets.unwrite", idempotent=True)
def unwrite(text: str) -> None:
    raise ValueError(f"can't unwrite {text} with {SECRET}")


@tool(name="secrets.reversible", undo=lambda args: [compensate(unwrite, text=args["text"])])
def reversible(text: str) -> None:
    ran.append(text)


def test_in_a_report_of_an_undo(tmp_path: Path) -> None:
    with job(tmp_path) as session:
        enter(SECRET)
        reversible("a")
        report = session.undo()
    assert report.steps[0].status == "failed"
    assert "can't unwrite a with <secret " in str(report)
    assert SECRET not in str(report)
    clean(tmp_path)


class Never(Guard):
    """Denies each write, and says why."""

    def screen(self, contract: Contract, body: Any, kind: str) -> Verdict | None:
        return Verdict.deny(f"never {SECRET}") if contract.effect == "write" else None


def test_in_a_reason_told_in_a_session_that_is_older_than_the_secret(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, gate=[Never()]), Session("in", store=tmp_path):
        enter(SECRET)
        with pytest.raises(Blocked) as blocked:
            write("a")
    assert "never <secret " in str(blocked.value)
    clean(tmp_path)


async def test_in_gathered_calls_and_sessions_inside(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    async def inner(n: int) -> None:
        async with Session(f"inner {n}", store=store) as session:
            await session.acall(echo, text=f"{n} {SECRET}")

    for _ in range(2):
        async with job(store, replay="continue") as session:
            await session.acall(enter, token=SECRET)
            await asyncio.gather(*(inner(n) for n in range(4)))
    clean(tmp_path)


def test_what_a_live_run_knows_is_what_a_resume_reads(tmp_path: Path) -> None:
    """The world of a run does not depend on whether its outcomes were read or just written."""
    links: list[Any] = []
    for replay in ("auto", "continue"):
        with warnings.catch_warnings(), job(tmp_path, replay=replay) as session:
            warnings.simplefilter("ignore")
            if replay == "auto":
                enter(SECRET)
                write(SECRET)
                write("b")
            links.append([step.link() for step in session.attempt.run.branches[""]])
    assert links[0] == links[1]


@pytest.mark.parametrize("stages", [[], [Secrets()]], ids=["by default", "with the stage"])
def test_in_an_input(tmp_path: Path, stages: list[Secrets]) -> None:
    """A resume finds the run by its input, and by its id; another input is another job."""

    def program(note: str = f"it is {SECRET}", **more: Any) -> str:
        told = {"note": note, "password": SecretStr(SECRET)}
        with Session("job", store=tmp_path, input=told, stages=stages, **more) as session:
            write("a")
        return session.run_id

    run = program()
    clean(tmp_path)
    assert program(replay="continue") == program(run=run) == run
    assert ran == ["a"]
    with pytest.raises(SessionError, match="another input"):
        program("it is none", run=run)
    clean(tmp_path)


def test_a_run_is_not_named_by_a_secret(tmp_path: Path) -> None:
    """A session inside, in a store of its own, knows the secrets of the session around it."""
    with Session("job", store=tmp_path / "one"):
        login(SecretStr(SECRET))
        with (
            pytest.raises(SessionError, match="quotes a secret") as caught,
            Session(f"for {SECRET}", store=tmp_path / "two"),
        ):
            write("never")
    assert SECRET not in str(caught.value)
    assert "never" not in ran
    clean(tmp_path)
