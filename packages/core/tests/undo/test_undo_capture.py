"""What a tool declares of its undo, and what of it the trace holds before anything happens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from rollcage import (
    Approval,
    Blocked,
    CaptureFailed,
    Compensation,
    Contract,
    ContractError,
    Session,
    StepView,
    Store,
    UnknownOutcome,
    Verdict,
    compensate,
    current_step,
    tool,
)

Events = Callable[[str], list[dict[str, Any]]]


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


# --- declarations --------------------------------------------------------------------------------


@tool(effect="write", idempotent=True)
def take_back(what: str, how: Any = None) -> None: ...


def plan(args: dict[str, Any]) -> list[Compensation]:
    return [compensate(take_back, what=args["what"])]


@pytest.mark.parametrize("effect", ["pure", "read", "scope"])
@pytest.mark.parametrize("field", ["undo", "observe", "probe"])
def test_only_a_write_has_something_to_take_back(effect: Any, field: str) -> None:
    declared: dict[str, Any] = {field: plan}
    with pytest.raises(ContractError, match=f"{field}= is for writes"):
        tool(effect=effect, **declared)(lambda what: None)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"undo": 3}, "can't be called"),
        ({"undo": lambda other: []}, "undo= wants 'other'"),
        ({"probe": lambda args, result: None}, "probe= wants 'result'"),
        ({"undo": dict.fromkeys}, "undo="),
    ],
)
def test_a_declaration_that_can_not_be_called(declared: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Contract(name="x", parameters={}, **declared)


def test_an_undo_plans_and_does_not_wait() -> None:
    async def undo() -> list[Compensation]:
        return []

    with pytest.raises(ContractError, match="make it a plain function"):
        Contract(name="x", parameters={}, undo=undo)


def test_an_undo_may_take_any_of_its_words() -> None:
    def undo(**told: Any) -> list[Compensation]:
        return []

    assert Contract(name="x", parameters={}, undo=undo).undo_words == {"args", "before", "result"}
    assert Contract(name="x", parameters={}, undo=plan).undo_words == {"args"}


def test_policies_see_what_is_reversible(store: Store) -> None:
    def reversible_only(step: StepView) -> Verdict | None:
        return None if step.contract.reversible else Verdict.deny("it can't be undone")

    @tool(effect="write", undo=plan)
    def kept(what: str) -> str:
        return what

    @tool(effect="write")
    def gone(what: str) -> str:
        return what

    @tool(effect="read")
    def seen(what: str) -> str:
        return what

    with Session("job", store=store, gate=[reversible_only]):
        assert kept("a") == seen("a") == "a"
        with pytest.raises(Blocked, match="can't be undone"):
            gone("a")


def test_only_a_declared_tool_compensates() -> None:
    with pytest.raises(ContractError, match=r"declare it with @rollcage\.tool"):
        compensate(print, what=1)
    assert compensate(take_back, what="a") == Compensation("take_back", {"what": "a"})


# --- what is written, and when -------------------------------------------------------------------


def test_the_plan_and_what_was_before_stand_in_front_of_the_effect(
    store: Store, events: Events, files: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with Session("job", store=store) as session:
        files.put_file(path=str(path), text="new")
    (started,) = of_kind(events(session.run_id), "step")
    assert started["before"] == {f"file:{path}": {"exists": True, "text": "old"}}
    assert started["plan"] == [
        {"name": "restore_file", "version": "", "args": {"path": str(path), "text": "old"}}
    ]
    assert started["reversible"] is True
    (finished,) = of_kind(events(session.run_id), "outcome")
    assert finished["after"].keys() == started["before"].keys()
    assert finished["after"][f"file:{path}"].keys() == {"exists", "text"}


def test_a_write_that_is_made_again_is_undone_to_what_was_before_the_first_time(
    store: Store,
) -> None:
    shelf = {"place": "old"}
    lost = [True]

    @tool(effect="write", name="test_undo_capture.back", idempotent=True)
    def back(what: str) -> None:
        shelf["place"] = what

    @tool(
        effect="write",
        name="test_undo_capture.shelve",
        idempotent=True,
        observe=lambda args: dict(shelf),
        undo=lambda before: [compensate(back, what=before["place"])],
    )
    def shelve(what: str) -> None:
        shelf["place"] = what
        if lost.pop():
            raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store):
        shelve("new")
    lost.append(False)
    with Session("job", store=store) as again:
        shelve("new")
        again.undo()
    assert shelf == {"place": "old"}


def test_a_plan_that_needs_the_result_is_completed_when_that_is_there(
    store: Store, events: Events, files: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows")
    with Session("job", store=store) as session:
        assert files.add_row(path=path, text="x") == 1
    (started,) = of_kind(events(session.run_id), "step")
    assert "plan" not in started
    assert started["reversible"] is True
    assert started["before"] == {f"file:{path}": {"exists": False, "text": None}}
    (finished,) = of_kind(events(session.run_id), "outcome")
    assert finished["plan"] == [
        {"name": "remove_row", "version": "", "args": {"path": path, "row": 1}}
    ]


def test_a_body_and_a_late_plan_know_what_was_before(store: Store) -> None:
    shelf = {"place": "old"}
    known: list[Any] = []

    @tool(effect="write", name="test_undo_capture.empty", idempotent=True)
    def empty(what: str) -> None:
        shelf["place"] = what

    def plans(before: dict[str, Any], result: str) -> list[Compensation]:
        assert result == "new"
        return [compensate(empty, what=before["place"])]

    @tool(name="test_undo_capture.fill", observe=lambda args: dict(shelf), undo=plans)
    def fill(what: str) -> str:
        step = current_step()
        assert step is not None
        known.append(step.before)
        shelf["place"] = what
        return what

    @tool(effect="write", name="test_undo_capture.plain")
    def plain() -> None:
        step = current_step()
        assert step is not None
        known.append(step.before)

    with Session("job", store=store) as session:
        fill("new")
        plain()
        assert known == [{"place": "old"}, None]
        session.undo()
    assert shelf == {"place": "old"}


def test_a_failure_says_what_it_changed(
    store: Store, events: Events, files: Any, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="full"), Session("job", store=store) as session:
        files.half_file(path=str(tmp_path / "a"), text="half")
    (finished,) = of_kind(events(session.run_id), "outcome")
    assert finished["outcome"]["status"] == "error"
    assert finished["after"]


def test_a_tool_that_declares_nothing_writes_nothing_of_it(
    store: Store, events: Events, files: Any
) -> None:
    with Session("job", store=store) as session:
        files.mail(to="ann")
    said = {field for event in events(session.run_id) for field in event}
    assert not said & {"before", "plan", "after", "reversible", "undoes"}


def test_what_an_undo_says_can_not_be_taken_back_is_not_reversible(
    store: Store, events: Events
) -> None:
    @tool(effect="write", undo=lambda args: None)
    def early(what: str) -> None: ...

    @tool(effect="write", undo=lambda result: None)
    def late(what: str) -> None: ...

    with Session("job", store=store) as session:
        early("a")
        late("a")
    one, two = of_kind(events(session.run_id), "step")
    assert one["plan"] is None
    assert "plan" not in two
    assert of_kind(events(session.run_id), "outcome")[1]["plan"] is None
    with Session("job", store=store) as session:
        early("a")
        late("a")
        report = session.undo()
    assert [each.status for each in report.steps] == ["irreversible", "irreversible"]


def test_large_states_and_arguments_go_to_blobs(
    store: Store, events: Events, files: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old" * 40_000)
    with Session("job", store=store) as session:
        files.put_file(path=str(path), text="new")
        (started,) = of_kind(events(session.run_id), "step")
        assert started["before"][f"file:{path}"]["$rollcage"] == "blob"
        assert started["plan"][0]["args"]["text"]["$rollcage"] == "blob"
        assert session.undo().steps[0].status == "verified"
    assert path.read_text() == "old" * 40_000


def test_a_large_text_in_a_plan_alone_goes_to_a_blob(store: Store, events: Events) -> None:
    @tool(effect="write", undo=lambda args: [compensate(take_back, what=args["what"] * 100_000)])
    def small(what: str) -> None: ...

    with Session("job", store=store) as session:
        small(what="x")
    (started,) = of_kind(events(session.run_id), "step")
    assert started["plan"][0]["args"]["what"]["$rollcage"] == "blob"


def test_a_hit_asks_for_nothing(store: Store, files: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with Session("job", store=store):
        files.put_file(path=path, text="new")
    Path(path).unlink()  # a look at it would tell
    with Session("job", store=store, replay="resume") as session:
        assert files.put_file(path=path, text="new") == 3
    assert session.stats.hits == 1


# --- what refuses the call -----------------------------------------------------------------------


def broken(args: dict[str, Any]) -> Any:
    raise PermissionError("not yours")


@tool(effect="write", name="secret_take_back", secret=["what"])
def secret_take_back(what: str) -> None: ...


@tool(effect="write")
def odd_take_back(what: pydantic.SecretStr) -> None: ...


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"observe": broken}, "PermissionError: not yours"),
    ({"observe": lambda args: 3}, "observe returned a int, not a mapping"),
    ({"observe": lambda args: {3: 3}}, "which is not a text"),
    ({"observe": lambda args: {"a": object()}}, "no encoding"),
    ({"undo": broken}, "PermissionError: not yours"),
    ({"undo": lambda args: "no list"}, "undo returned a str, not a list"),
    ({"undo": lambda args: ["restore"]}, "create it with compensate"),
    ({"undo": lambda args: [compensate("nobody")]}, "no tool named 'nobody' is declared"),
    ({"undo": lambda args: [compensate(take_back)]}, "what: Field required"),
    ({"undo": lambda args: [compensate(secret_take_back, what="x")]}, "is a secret"),
    ({"undo": lambda args: [compensate(odd_take_back, what="x")]}, "is a secret"),
    (
        {"undo": lambda args: [compensate(take_back, what="x", how=pydantic.SecretStr("x"))]},
        "is a secret",
    ),
]


@pytest.mark.parametrize(("declared", "said"), REFUSED, ids=[said for _, said in REFUSED])
@pytest.mark.parametrize("waits", [False, True])
def test_what_can_not_be_prepared_does_not_run(
    store: Store, events: Events, declared: Any, said: str, waits: bool
) -> None:
    ran: list[str] = []

    @tool(effect="write", **declared)
    def write(what: str) -> None:
        ran.append(what)

    with Session("job", store=store) as session:
        with pytest.raises(CaptureFailed, match=said) as caught:
            if waits:
                asyncio.run(session.acall(write, what="a"))
            else:
                write("a")
        assert caught.value.verdict_code == "capture_failed"
        assert session.halted is None
    assert ran == []
    assert of_kind(events(session.run_id), "step") == []


def test_an_async_observe_needs_an_async_call(store: Store, events: Events) -> None:
    seen: list[str] = []

    async def observe(args: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"seen": list(seen)}

    @tool(effect="write", observe=observe)
    def write(what: str) -> None:
        seen.append(what)

    with Session("job", store=store) as session:
        with pytest.raises(CaptureFailed, match="has to be awaited: use acall"):
            write("a")
        asyncio.run(session.acall(write, what="b"))
    (started,) = of_kind(events(session.run_id), "step")
    assert started["before"] == {"seen": []}, "a copy, not what the tool goes on to change"


def test_approval_comes_first(store: Store) -> None:
    said: list[str] = []

    def observe(args: dict[str, Any]) -> dict[str, Any]:
        said.append("observed")
        return {}

    @tool(effect="write", observe=observe)
    def write(what: str) -> None:
        said.append("written")

    def approver(request: Any) -> Any:
        said.append("asked")
        return Approval(request.args["what"] == "a", by="ann")

    rules = [lambda step: Verdict.ask("why?")]
    with Session("job", store=store, gate=rules, approver=approver):
        write("a")
        with pytest.raises(Blocked):
            write("b")
    assert said == ["asked", "observed", "written", "observed", "asked"]


def test_a_late_plan_that_fails_loses_nothing(
    store: Store, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    def undo(result: int) -> Any:
        raise KeyError(result)

    def observe(args: dict[str, Any]) -> dict[str, Any]:
        if len(looked) == 1:
            raise OSError("gone")
        looked.append(1)
        return {}

    looked: list[int] = []

    @tool(effect="write", undo=undo, observe=observe)
    def write() -> int:
        return 7

    with Session("job", store=store) as session:
        assert write() == 7
    (finished,) = of_kind(events(session.run_id), "outcome")
    assert finished["outcome"] == {"status": "ok", "value": 7}
    assert "after" not in finished
    assert "can't be planned" in caplog.text
    assert "can't be observed" in caplog.text


@pytest.mark.parametrize("to_size", [-1, 0, 1])
@pytest.mark.parametrize(
    ("text", "size"), [("x", 1), ("é", 2), ("😀", 4)], ids=["1 byte", "2 bytes", "4 bytes"]
)
@pytest.mark.parametrize("where", ["state", "plan"])
def test_a_value_of_64_kib_is_the_smallest_that_goes_to_a_blob(
    store: Store, events: Events, where: str, text: str, size: int, to_size: int
) -> None:
    whole = 64 * 1024 - 2 + to_size  # in JSON, it has quotes around it
    value = text * (whole // size) + "x" * (whole % size)
    plain = "x"

    def back(args: dict[str, Any]) -> list[Compensation]:
        return [compensate(take_back, what=value if where == "plan" else plain)]

    @tool(effect="write", observe=lambda _: {"it": value if where == "state" else plain}, undo=back)
    def write() -> None: ...

    with Session("job", store=store) as session:
        write()
    (started,) = of_kind(events(session.run_id), "step")
    found = {"state": started["before"]["it"], "plan": started["plan"][0]["args"]["what"]}
    kept = found.pop(where)
    assert [*found.values()] == [plain]
    if to_size < 0:
        assert kept == value
    else:
        assert (kept["$rollcage"], kept["size"]) == ("blob", whole + 2)
