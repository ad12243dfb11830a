"""Runs that go on from another one, which keeps its effects."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from copying import Copy
from mortal import until_it_dies
from put_world import (
    agent,
    new_world,  # noqa: F401 - pytest finds it here
    put,
    recorded,
    tell,
    world,
)
from rollcage import (
    NotReplayable,
    Options,
    RunNotFound,
    Session,
    UnknownOutcome,
    current_step,
    tool,
    undo_run,
)
from rollcage.errors import SourceMissing, StoreError, TraceCorrupt
from rollcage.trace.chain import chained
from rollcage.trace.folder import Folder


def test_a_run_goes_on_from_another_one(tmp_path: Path) -> None:
    def half() -> None:
        put("a", 1)

    run = recorded(tmp_path, half)
    with Session("other", store=tmp_path, source=run) as session:
        assert agent() == [1, 10]
    assert world.ran == ["look a", "put b 10", "look b"]
    assert Folder(tmp_path).get("names", "other") == session.run_id.encode()
    assert undo_run(tmp_path, session.run_id).complete
    assert world.state == {"a": 1}  # the other run's effect is its own
    world.ran.clear()
    with Session("other", store=tmp_path, source=run) as again:  # it goes on, and makes no other
        assert agent() == [1, 10]
    assert again.run_id == session.run_id
    assert world.ran == ["look a", "put b 10", "look b"]


def test_a_copy_says_of_itself_what_the_run_said(tmp_path: Path) -> None:
    how: dict[str, Any] = {"input": {"n": 1}, "actor": "ann", "options": Options(seed="s")}
    with Session("job", store=tmp_path, **how) as first:
        put("a", 1)
    with Session("other", store=tmp_path, source=first.run_id, **how) as session:
        put("a", 1)
    recorded, copy = (
        orjson.loads(Folder(tmp_path).read(run)[0]) for run in (first.run_id, session.run_id)
    )
    its_own = {"run": session.run_id, "name": "other", "copied": first.run_id, "hash": copy["hash"]}
    assert copy == {**recorded, **its_own}


def test_killed_at_every_moment_it_goes_on(tmp_path: Path) -> None:
    def half() -> None:
        put("a", 1)

    def program(root: Any) -> list[Any]:
        with Session("other", store=root, source=run, replay="continue"):
            return agent()

    run = recorded(tmp_path / "whole", half)
    _, store = until_it_dies(tmp_path / "whole", 0, program)
    for life in range(1, store.moments + 1):
        world.__init__()  # type: ignore[misc] # a new one
        root = tmp_path / str(life)
        run = recorded(root, half)
        until_it_dies(root, life, program)
        gave: list[Any] = []
        for _ in range(3):
            try:
                gave = program(root)
                break
            except UnknownOutcome as halt:
                tell(root, halt)
        assert gave == [1, 10], life
        assert world.ran.count("put b 10") == 1, life


def test_what_another_run_began_is_made_again_under_its_key(tmp_path: Path) -> None:
    keys: list[str] = []

    @tool(name="fork.idem", idempotent=True)
    def idem(n: int) -> str:
        step = current_step()
        assert step is not None
        keys.append(step.idempotency_key)
        if len(keys) == 1:
            raise TimeoutError
        return f"done {n}"

    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path) as session:
        idem(1)
    with Session("other", store=tmp_path, source=session.run_id):
        idem(1)
    with Session("copy", store=tmp_path, stages=[Copy(session.run_id, live=True)]):
        idem(1)
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


# --- a run elsewhere -----------------------------------------------------------------------------


@tool(name="going.large")
def large(size: int) -> str:
    return "x" * size


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run that was cut off, with a large value beside it."""
    with pytest.raises(InterruptedError), Session("job", store=tmp_path / "a") as session:
        assert large(200_000) == "x" * 200_000
        assert large(1) == "x"
        raise InterruptedError
    return tmp_path / "a" / "logs" / f"{session.run_id}.jsonl"


@pytest.mark.parametrize("as_path", [str, Path])
def test_from_the_path_of_its_log(tmp_path: Path, log: Path, as_path: Any) -> None:
    with log.open("ab") as file:
        file.write(b'{"event":"step"')  # the writer died in the middle of a line
    with Session("job", store=tmp_path / "b", source=as_path(log)) as session:
        assert large(200_000) == "x" * 200_000
        assert large(1) == "x"
        large(2)
    assert (session.stats.hits, session.stats.misses) == (2, 1)
    with Session("job", store=tmp_path / "b", replay="offline") as again:
        assert large(200_000) == "x" * 200_000
    assert again.run_id == session.run_id
    with Session("job", store=tmp_path / "c", source=as_path(log), replay="offline"):
        assert large(200_000) == "x" * 200_000


def test_from_a_path_of_another_name(tmp_path: Path, log: Path) -> None:
    copied = tmp_path / "somewhere" / "kept"
    copied.parent.mkdir()
    copied.write_bytes(log.read_bytes())
    with pytest.raises(StoreError, match=r"the large value .* of the run to start from is gone"):
        Session("job", store=tmp_path / "b", source=str(copied)).__enter__()
    session = Session("job", store=tmp_path / "b", source=copied, replay="offline")
    with pytest.raises(NotReplayable, match="is gone or damaged"), session:
        large(200_000)
    assert session.run_id == log.stem


def test_from_what_is_no_log(tmp_path: Path, log: Path) -> None:
    def enters(source: Any, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            Session("job", store=tmp_path / "b", source=source).__enter__()

    enters("another", SourceMissing, "run another, which this session starts from, is not there")
    enters((tmp_path / "a", "another"), SourceMissing, f"rollcage runs --store {tmp_path / 'a'}")
    enters(tmp_path / "none.jsonl", RunNotFound, "there is no log at .*none.jsonl")
    enters(tmp_path, StoreError, "can't be read")
    text = tmp_path / "text.jsonl"
    for written in ("", "no line", "no JSON\n", '{"event":"run"}\n', "[1]\n"):
        text.write_text(written)
        enters(str(text), TraceCorrupt, "it does not begin as the log of a run")
    assert not (tmp_path / "b" / "logs").exists()


@pytest.mark.parametrize("begins", [{"event": "attempt"}, {"run": 5}, {"imported": []}])
def test_from_a_log_that_begins_otherwise(tmp_path: Path, log: Path, begins: Any) -> None:
    first, *rest = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    events = [{**first, **begins}, *rest]
    lines = chained({name: each[name] for name in each if name != "hash"} for each in events)
    forged = tmp_path / "forged.jsonl"
    forged.write_bytes(b"".join(lines))
    with pytest.raises(TraceCorrupt, match="does not fit a run"):
        Session("job", store=tmp_path / "b", source=forged).__enter__()


def test_the_end_of_a_run_elsewhere_is_attested(tmp_path: Path, log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(TraceCorrupt, match="the log ends here, and went on"):
        Session("job", store=tmp_path / "b", source=log).__enter__()
