"""Taking back under a facade: by tools that were approved, and always possible by those."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Blocked,
    CaptureFailed,
    Options,
    PackageMissing,
    Session,
    SessionError,
    Store,
    aundo_run,
    compensate,
    plan_undo,
    tool,
    undo_run,
)
from rollcage.trace.store import drop
from rollcage_governance import Facade, Registry

Approve = Callable[..., Registry]

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Begin with nothing."""
    ran.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that tools write."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk" / "file"


def compensating(files: Any, undo: Any = None) -> Any:
    """A tool that writes a file, and what takes that back."""

    @tool(effect="write", observe=files.observe, undo=undo or files.restore)
    def write_it(path: str, text: str) -> None:
        """Write a file."""
        Path(path).write_text(text)

    return write_it


def test_a_plan_by_an_unapproved_tool_is_refused_before_the_effect(
    store: Store, approve: Approve, file: Path, files: Any
) -> None:
    write_it = compensating(files)
    registry = approve(write_it)
    with Session("job", store=store, gate=[Facade("agent")], replay="off"):
        with pytest.raises(CaptureFailed, match="The tool restore_file is not approved"):
            write_it(str(file), "text")
        assert not file.exists()
    registry.propose(files.restore_file, by="ann")
    registry.approve("restore_file", by="bob")
    with Session("job", store=store, gate=[Facade("agent")], replay="off") as session:
        write_it(str(file), "text")
        with pytest.raises(Blocked, match="is not one of this agent's"):
            files.restore_file(str(file), None)  # it undoes, no more
        assert session.undo().complete
    assert not file.exists()


def test_a_transaction_takes_back_by_approved_tools(
    store: Store, approve: Approve, file: Path, files: Any
) -> None:
    write_it = compensating(files)
    approve(write_it, files.restore_file)
    with Session("job", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(ZeroDivisionError), session.transaction():
            write_it(str(file), "text")
            raise ZeroDivisionError
        assert not file.exists()


def test_a_plan_that_needs_the_result_is_not_carried_out_by_an_unapproved_tool(
    store: Store, approve: Approve, file: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The effect is out there by then: it stays to be undone once the tool is approved."""

    @tool(effect="write")
    def take_away(path: str) -> None:
        """Take a file away."""
        ran.append("take_away")
        Path(path).unlink()

    def undo(args: dict[str, Any], result: None) -> Any:
        return [compensate(take_away, path=args["path"])]

    write_it = compensating(files, undo)
    registry = approve(write_it)
    with Session("job", store=store, gate=[Facade("agent")]) as session:
        write_it(str(file), "text")
        assert "can't be planned" in caplog.text
        assert not session.undo().complete
    assert not undo_run(store, session.run_id).complete
    assert ran == []
    registry.propose(take_away, by="ann")
    registry.approve("take_away", by="bob")
    assert undo_run(store, session.run_id).complete
    assert ran == ["take_away"]


@pytest.fixture
def written(store: Store, approve: Approve, file: Path, files: Any) -> tuple[str, Any, Registry]:
    """A run under a facade that wrote a file: its id, its tool and the registry."""
    write_it = compensating(files)
    registry = approve(write_it, files.restore_file)
    with Session("job", store=store, gate=[Facade("agent")]) as session:
        write_it(str(file), "text")
    return session.run_id, write_it, registry


def test_without_the_package_nothing_is_undone(
    store: Store, file: Path, written: tuple[str, Any, Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, _ = written
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    for take_back in (plan_undo, undo_run):
        with pytest.raises(PackageMissing, match=r"'agent'.*rollcage\[governance\]"):
            take_back(store, run)
    assert file.exists()


def test_what_was_approved_then_can_take_back_what_it_did(
    store: Store, file: Path, files: Any, written: tuple[str, Any, Registry]
) -> None:
    run, _, registry = written
    for name in ("write_it", "restore_file"):
        registry.freeze(name, by="eve", why="an incident")
        registry.deprecate(name, by="eve")
        registry.deactivate(name, "pack", by="eve")
    assert plan_undo(store, run).complete
    assert undo_run(store, run).complete
    assert not file.exists()


def test_without_a_registry_the_trace_says_what_was_approved(
    store: Store, file: Path, files: Any, written: tuple[str, Any, Registry]
) -> None:
    """On another machine, say."""
    for key in ("lines", "end"):
        assert drop(store, "registry", key)
    assert undo_run(store, written[0]).complete
    assert not file.exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_was_changed_since_takes_nothing_back_until_it_is_approved(
    store: Store, file: Path, files: Any, written: tuple[str, Any, Registry], *, is_async: bool
) -> None:
    run, write_it, registry = written

    @tool(effect="write", idempotent=True, observe=files.observe, name="restore_file")
    def other(path: str, text: str | None) -> None:
        """Give a file back the text that it had, or take it away."""
        Path(path).unlink()

    def undo() -> Any:
        if is_async:
            return asyncio.run(aundo_run(store, run, tools=[write_it, other]))
        return undo_run(store, run, tools=[write_it, other])

    with pytest.raises(SessionError, match="restore_file is not what was approved: other code"):
        undo()
    with pytest.raises(SessionError, match="restore_file is not what was approved"):
        plan_undo(store, run, tools=[write_it, other])
    assert file.exists()
    registry.propose(other, by="ann")
    registry.approve("restore_file", by="bob")
    assert undo().complete
    assert not file.exists()


def test_no_observe_is_called_of_a_tool_that_was_changed(
    store: Store, files: Any, written: tuple[str, Any, Registry]
) -> None:
    def observe(args: dict[str, Any]) -> dict[str, Any]:
        ran.append("observe")
        found: dict[str, Any] = files.observe(args)
        return found

    @tool(effect="write", observe=observe, undo=files.restore)
    def write_it(path: str, text: str) -> None:
        """Write a file."""

    with pytest.raises(SessionError, match=r"write_it is not what was approved: other .*observe"):
        undo_run(store, written[0], tools=[write_it, files.restore_file])
    assert ran == []


def test_orphans_are_taken_back_by_what_was_approved(
    store: Store, file: Path, files: Any, written: tuple[str, Any, Registry]
) -> None:
    run, write_it, registry = written
    registry.freeze("restore_file", by="eve")
    with Session(
        "job",
        store=store,
        gate=[Facade("agent")],
        source=run,
        on_divergence="undo",
        options=Options(tools=[write_it, files.restore_file]),
    ):
        write_it(str(file), "another")
    assert file.read_text() == "another"


def test_what_was_approved_once_may_undo(tmp_path: Path, approve: Approve) -> None:
    undone: list[str] = []

    @tool(effect="write", name="takes_back")
    def takes_back(to: str) -> None:
        """Take it back."""
        undone.append(to)

    @tool(
        effect="write",
        undo=lambda args: [compensate(takes_back, to=args["to"])],
    )
    def sends(to: str) -> str:
        """Send it."""
        return to

    registry = approve(sends, takes_back)
    gate = [Facade("agent")]
    for frozen in (False, True):
        with Session("job", store=tmp_path / "store", gate=gate, replay="off") as session:
            sends("ann")
            if frozen:
                registry.freeze("takes_back", by="eve")
        assert undo_run(tmp_path / "store", session.run_id, gate=gate).complete
    assert undone == ["ann", "ann"]
    with Session("job", store=tmp_path / "store", replay="off") as session:
        sends("bob")

    @tool(effect="write", name="takes_back")
    def other(to: str) -> None:
        """Take it back otherwise."""
        undone.append("other")

    with pytest.raises(SessionError, match="takes_back is frozen"):
        undo_run(tmp_path / "store", session.run_id, gate=gate, tools=[sends, other])
    assert undone == ["ann", "ann"]
