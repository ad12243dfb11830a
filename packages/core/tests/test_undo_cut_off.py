"""A run that was killed in the middle of an undo: a resume finishes that first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import ToolMissing, UndoIncomplete, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., Any]
HERE = Path(__file__).parent

# Dies behind the effect of the compensation that gives file `b` back: before its end is written.
CRASHES = """
    import os, sys
    sys.path.insert(0, sys.argv[1])
    import file_tools
    from rollcage.session.session import Session

    def dies(what, path):
        if what == "restored" and path.endswith("b"):
            os._exit(9)

    file_tools.note = dies
    with Session("job", store="store") as session:
        file_tools.put_file(path="disk/a", text="a")
        with session.transaction():
            with session.transaction():
                file_tools.put_file(path="disk/b", text="b")
                file_tools.put_file(path="disk/c", text="c")
            raise KeyError
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def killed(python: Python, disk: Path, store: JsonlStore) -> str:
    """The run that was killed in the middle of an undo."""
    died = python(CRASHES, str(HERE))
    assert died.returncode == 9, died.stderr
    assert content(disk) == {"a": "a"}
    return store.runs()[-1].run


def content(disk: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in disk.iterdir() if path.name != "effects"}


def job(session: Session, files: Any, *, raises: bool = False) -> None:
    files.put_file(path="disk/a", text="a")
    with session.transaction():
        with session.transaction():
            files.put_file(path="disk/b", text="b")
            files.put_file(path="disk/c", text="c")
        if raises:
            raise KeyError
        files.put_file(path="disk/d", text="d")


def tools(files: Any) -> list[Any]:
    return [files.put_file, files.restore_file]


def statuses(events: Events, run: str) -> list[tuple[int, str]]:
    return [(e["of"][1], e["status"]) for e in events(run) if e["event"] == "undo.finished"]


def test_it_is_finished_first(
    killed: str, store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with Session("job", store=store, tools=tools(files)) as session:
        assert statuses(events, session.run_id) == [(2, "verified")]
        job(session, files)
        assert (session.stats.hits, session.stats.misses) == (1, 3), "a is given back, no more"
    assert content(disk) == {name: name for name in "abcd"}
    with Session("job", store=store, replay="offline") as session:
        job(session, files)
        assert session.stats.hits == 4


async def test_async_too(
    killed: str, store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with pytest.raises(KeyError):
        async with Session("job", store=store, tools=tools(files)) as session:
            assert statuses(events, session.run_id) == [(2, "verified")]
            job(session, files, raises=True)
    assert content(disk) == {"a": "a"}


def test_what_ran_again_is_taken_back_by_an_undo_of_its_own(
    killed: str, store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with pytest.raises(KeyError), Session("job", store=store, tools=tools(files)) as session:
        job(session, files, raises=True)
    assert [status for _, status in statuses(events, session.run_id)] == ["verified"] * 3
    assert content(disk) == {"a": "a"}


def test_a_tool_that_it_needs_is_not_here(killed: str, store: JsonlStore, disk: Path) -> None:
    with pytest.raises(ToolMissing, match="put_file"), Session("job", store=store, tools=[]):
        raise AssertionError("nothing may run")
    assert store.runs()[-1].status == "error"
    assert content(disk) == {"a": "a"}


@pytest.mark.parametrize("is_async", [False, True])
async def test_it_can_not_be_finished(
    killed: str,
    store: JsonlStore,
    files: Any,
    disk: Path,
    is_async: bool,
) -> None:
    @tool(name="restore_file", effect="write", idempotent=True, observe=files.observe)
    def refuses(path: str, text: str | None) -> None:
        raise PermissionError(path)

    (disk / "b").write_text("b")  # as if it had been killed just before
    session = Session("job", store=store, tools=[files.put_file, refuses])
    with pytest.raises(UndoIncomplete, match=r"can't be finished(.|\n)*on_divergence"):
        if is_async:
            async with session:
                raise AssertionError("nothing may run")
        else:
            with session:
                raise AssertionError("nothing may run")
    with Session("job", store=store, tools=tools(files)) as session:  # now it can
        job(session, files)
    assert content(disk) == {name: name for name in "abcd"}


def test_taken_for_performed_where_that_is_said(
    killed: str, store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with Session("job", store=store, tools=tools(files), on_divergence="warn") as session:
        files.put_file(path="disk/a", text="a")
    assert not statuses(events, session.run_id)


def test_who_only_looks_finishes_nothing(
    killed: str, store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with Session("job", store=store, replay="offline", tools=tools(files)) as session:
        files.put_file(path="disk/a", text="a")
    assert not statuses(events, session.run_id)
