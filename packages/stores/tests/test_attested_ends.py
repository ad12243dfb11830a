"""What keeps a store goes by the attested ends of its logs, on each kind of store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres import new_store
from rollcage import Session, TraceCorrupt, abandon_run, open_store, tool
from rollcage.trace.chain import attested_head
from rollcage_stores.copies import copy_run, move_run
from rollcage_stores.doctor import examine
from rollcage_stores.prune import prune_run

ran: list[int] = []


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    ran.clear()
    if request.param == "postgres":
        with new_store() as url:
            yield url
    else:
        yield {"folder": f"{tmp_path}/one", "sqlite": f"sqlite:///{tmp_path}/one.db"}[request.param]


@tool(name="ends.write", idempotent=True)
def write(n: int) -> int:
    ran.append(n)
    return n


def job(store: str, *numbers: int, fails: bool = False, **how: Any) -> str:
    session = Session("job", store=store, **how)
    with contextlib.suppress(InterruptedError), session:
        for n in numbers:
            write(n)
        if fails:
            raise InterruptedError
    return session.run_id


def cut(store: str, run: str, keep: int) -> None:
    log = open_store(store).open(run)
    log.replace(log.read()[:keep])
    log.close()


def test_a_cut_log_is_named_and_not_copied(where: str, tmp_path: Path) -> None:
    run = job(where, 1)
    assert examine(where) == []
    cut(where, run, 3)
    (finding,) = [each for each in examine(where) if each.kind == "damaged"]
    assert finding.run == run
    assert "went on when its last attempt ended" in finding.message
    for put in (copy_run, move_run):
        with pytest.raises(TraceCorrupt):
            put(where, str(tmp_path / "other"), run)
    with pytest.raises(TraceCorrupt):
        job(where, 1)
    abandon_run(where, run)  # a way out without the lost lines
    job(where, 2)
    assert ran == [1, 2]


def test_a_log_that_is_gone_is_named(where: str) -> None:
    run = job(where, 1)
    log = open_store(where).open(run)
    log.read()
    log.replace([])
    log.close()
    found = [each for each in examine(where) if each.run == run]
    assert {each.kind for each in found} == {"damaged"}


@pytest.mark.parametrize("put", [copy_run, move_run])
def test_a_copy_has_the_attested_end(where: str, tmp_path: Path, put: Any) -> None:
    run, other = job(where, 1, fails=True), f"{tmp_path}/other"
    put(where, other, run)
    head = attested_head(open_store(other), run)
    assert head == attested_head(open_store(where), run) is not None
    if put is move_run:
        job(other, 1, 2, fails=True)
        assert attested_head(open_store(other), run) != head
        move_run(other, where, run)
        job(where, 1, 2, 3)
        assert ran == [1, 2, 3]


def test_a_pruned_run_attests_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = job(where, 1)
    kind = type(open_store(where).open("probe"))
    replace = kind.replace

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        prune_run(where, run)
    monkeypatch.setattr(kind, "replace", replace)
    assert [each.code for each in examine(where)] == ["prune_cut_off"]
    prune_run(where, run)
    assert attested_head(open_store(where), run) is None
    assert examine(where) == []
    job(where, 2)
    assert ran == [1, 2]
