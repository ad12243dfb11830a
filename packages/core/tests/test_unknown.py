"""Writes of which only the beginning is recorded: who can tell what became of them is asked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import DidNotHappen, Happened, UnknownOutcome, compensate, current_step, tool
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


class Service:
    """Somebody else's, who can be asked; a call may get lost before or after it was performed."""

    def __init__(self) -> None:
        self.performed: dict[str, str] = {}
        self.keys: list[str] = []
        self.answers = True
        self.lost: str = ""  # "before", "after"

    def perform(self, what: str) -> str:
        step = current_step()
        assert step is not None
        self.keys.append(step.idempotency_key)
        if self.lost == "before":
            raise TimeoutError
        self.performed[step.idempotency_key] = what
        if self.lost == "after":
            raise TimeoutError
        return f"did {what}"

    def ask(self, key: str) -> Happened | DidNotHappen | None:
        if not self.answers:
            return None
        done = self.performed.get(key)
        return DidNotHappen() if done is None else Happened(f"did {done}")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def lose(store: JsonlStore, service: Service) -> Callable[..., str]:
    """Lose a call in a session of its own; the run's id."""

    def lose(call: Callable[..., Any], when: str) -> str:
        service.lost = when
        with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
            call("x")
        service.lost = ""
        return session.run_id

    return lose


def declared(service: Service, **more: Any) -> Any:
    @tool(effect="write", probe=service.ask, **more)
    def order(what: str) -> str:
        return service.perform(what)

    return order


def test_it_happened(
    store: JsonlStore, service: Service, lose: Callable[..., str], events: Events
) -> None:
    order = declared(service)
    lose(order, "after")
    with Session("job", store=store) as session:
        assert order("x") == "did x"
        assert session.stats.hits == 1
    assert len(service.keys) == 1
    (hit,) = [e for e in events(session.run_id) if e["event"] == "step.replayed"]
    assert hit["probed"] is True
    assert hit["outcome"] == {"status": "ok", "value": "did x"}
    with Session("job", store=store, replay="offline", source=session.run_id):
        assert order("x") == "did x"


def test_it_did_not_happen(store: JsonlStore, service: Service, lose: Callable[..., str]) -> None:
    order = declared(service)
    lose(order, "before")
    with Session("job", store=store) as session:
        assert order("x") == "did x"
        assert session.stats.misses == 1
    assert len(service.keys) == 2
    assert len(set(service.keys)) == 1, "in its place, under the same idempotency key"


def test_nobody_can_tell(store: JsonlStore, service: Service, lose: Callable[..., str]) -> None:
    order = declared(service)
    lose(order, "after")
    service.answers = False
    with pytest.raises(UnknownOutcome, match="rollcage resolve"), Session("job", store=store):
        order("x")
    service.answers = True
    with Session("job", store=store):
        assert order("x") == "did x"


def test_an_idempotent_one_runs_again_where_nobody_can_tell(
    store: JsonlStore, service: Service, lose: Callable[..., str]
) -> None:
    order = declared(service, idempotent=True)
    lose(order, "after")
    with Session("job", store=store):
        assert order("x") == "did x"
    assert len(service.keys) == 1, "it is asked first"
    service.performed.clear()
    service.keys.clear()
    with Session("job", store=store, replay="off"):
        pass
    lose(order, "before")
    service.answers = False
    with Session("job", store=store):
        assert order("x") == "did x"
    assert len(set(service.keys)) == 1
    assert len(service.keys) == 2


@pytest.mark.parametrize("answer", [True, False, "did x"])
def test_a_probe_that_gives_something_else_says_nothing(
    store: JsonlStore, tmp_path: Path, answer: object
) -> None:
    file = tmp_path / "order"
    service = Service()

    @tool(
        effect="write",
        probe=lambda: answer,
        observe=lambda args: {"order": file.read_text() if file.exists() else None},
        undo=lambda args: [],
    )
    def order(what: str) -> str:
        return service.perform(what)

    service.lost = "after"
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        order("x")
    gave = f"its probe gave {type(answer).__name__}, and not Happened, DidNotHappen or None"
    for _ in range(2):  # that the state is as it was is not taken for an answer
        with pytest.raises(UnknownOutcome, match=gave), Session("job", store=store):
            order("x")
    assert len(service.keys) == 1


def test_a_probe_that_fails_says_nothing(
    store: JsonlStore, service: Service, lose: Callable[..., str]
) -> None:
    def broken(key: str) -> Any:
        raise ConnectionError("no route")

    @tool(effect="write", probe=broken)
    def order(what: str) -> str:
        return service.perform(what)

    lose(order, "after")
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        order("x")


async def test_an_async_probe(store: JsonlStore, service: Service) -> None:
    async def ask(key: str) -> Any:
        await asyncio.sleep(0)
        return service.ask(key)

    @tool(effect="write", probe=ask)
    async def order(what: str) -> str:
        return service.perform(what)

    service.lost = "after"
    with pytest.raises(UnknownOutcome):
        async with Session("job", store=store):
            await order("x")
    service.lost = ""
    async with Session("job", store=store):
        assert await order("x") == "did x"


def test_by_a_look_alone(store: JsonlStore, files: Any, tmp_path: Path) -> None:
    path, cut = tmp_path / "a", ["before", "after"]

    @tool(effect="write", observe=files.observe)
    def put(path: str) -> str:
        when = cut.pop(0) if cut else ""
        if when == "before":
            raise TimeoutError
        Path(path).write_text("x")
        if when == "after":
            raise TimeoutError
        return "done"

    with pytest.raises(UnknownOutcome), Session("job", store=store):
        put(str(path))
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        put(str(path))  # all is as it was before: it runs again, and gets lost again
    assert cut == []
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        put(str(path))  # something changed: nobody can tell by whom
    path.unlink()
    with Session("job", store=store) as session:
        assert put(str(path)) == "done"
        assert session.undo().steps[0].status == "irreversible"


def test_what_was_before_the_first_time_counts(
    store: JsonlStore, files: Any, tmp_path: Path
) -> None:
    path, cut = tmp_path / "a", [True]
    path.write_text("old")

    @tool(effect="write", idempotent=True, observe=files.observe, undo=files.restore)
    def put(path: str) -> None:
        Path(path).write_text("new")
        if cut:
            raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store):
        put(str(path))
    cut.clear()
    with Session("job", store=store) as session:
        put(str(path))
        assert session.undo().complete
    assert path.read_text() == "old"


def test_a_failure_that_is_run_again_goes_back_to_before_the_first(
    store: JsonlStore, files: Any, tmp_path: Path
) -> None:
    path, broken = tmp_path / "a", [True]
    path.write_text("old")

    @tool(effect="write", observe=files.observe, undo=files.restore)
    def put(path: str) -> None:
        Path(path).write_text("half" if broken else "new")
        if broken:
            raise OSError("full")

    with pytest.raises(OSError, match="full"), Session("job", store=store):
        put(str(path))
    broken.clear()
    with Session("job", store=store) as session:
        put(str(path))
        assert session.undo().complete
    assert path.read_text() == "old"


# --- when they are undone ------------------------------------------------------------------------


def test_an_undo_asks_too(store: JsonlStore, service: Service, lose: Callable[..., str]) -> None:
    @tool(effect="write", name="test_unknown.cancel", idempotent=True)
    def cancel(said: str) -> None:
        service.performed.clear()

    def undo(result: str) -> Any:
        return [compensate(cancel, said=result)]

    order = declared(service, undo=undo)
    run = lose(order, "before")
    (step,) = undo_run(store, run, tools=[order, cancel]).steps
    assert (step.status, step.reason) == ("compensated", "its probe reports that it did not happen")
    run = lose(order, "after")
    (step,) = undo_run(store, run, tools=[order, cancel]).steps
    assert step.status == "compensated"
    assert step.calls[0].args == {"said": "did x"}, "planned with what the probe said"
    assert service.performed == {}


def test_the_word_of_a_probe_is_written_down(
    store: JsonlStore, service: Service, lose: Callable[..., str], events: Events
) -> None:
    order = declared(service)
    run = lose(order, "after")
    (step,) = undo_run(store, run, tools=[order]).steps
    assert step.status == "irreversible"
    (said,) = [e for e in events(run) if e["event"] == "step.resolved"]
    assert (said["by"], said["outcome"]["value"]) == ("probe", "did x")


def test_what_nobody_can_tell_of_is_listed_or_restored(
    store: JsonlStore, files: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a"

    @tool(effect="write", observe=files.observe, undo=files.restore)
    def put(path: str) -> None:
        Path(path).write_text("x")
        raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        files.put_file(path=str(tmp_path / "b"), text="b")
        put(str(path))
    tools = [put, files.restore_file, files.put_file]
    report = undo_run(store, session.run_id, tools=tools)
    assert [(e.name, e.status) for e in report.steps] == [
        ("put", "unknown"), ("put_file", "verified"),
    ]  # fmt: skip
    assert not report.complete
    (step,) = undo_run(store, session.run_id, tools=tools, in_doubt="restore").steps
    assert step.status == "verified"
    assert not path.exists()


def test_a_look_shows_that_it_did_not_happen(store: JsonlStore, files: Any, tmp_path: Path) -> None:
    @tool(effect="write", observe=files.observe, undo=files.restore)
    def put(path: str) -> None:
        raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        put(str(tmp_path / "a"))
    (step,) = undo_run(store, session.run_id, tools=[put, files.restore_file]).steps
    assert (step.status, step.reason) == ("verified", "the state is as it was before")


def test_without_its_tool_nobody_can_be_asked(
    store: JsonlStore, service: Service, lose: Callable[..., str]
) -> None:
    run = lose(declared(service), "after")
    (step,) = undo_run(store, run, tools=[]).steps
    assert step.status == "unknown"
    assert "no tool named 'order' is declared" in step.reason
