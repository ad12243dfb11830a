"""What can be done with runs and approvals, on each store, with its lines in the audit log."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from mission import SECRET, World, served_write
from postgres import new_store
from pydantic import SecretStr
from rollcage import (
    ApprovalRequired,
    Compensation,
    RunStopped,
    Session,
    SessionHalted,
    aundo_run,
    compensate,
    open_store,
    order_of,
    run_info,
    tool,
    undo_run,
)
from rollcage.errors import TraceCorrupt
from rollcage.trace.recorded import trace_of
from rollcage.trace.store import drop
from rollcage_server import Role
from rollcage_server.audit import Audit
from rollcage_server.errors import AuditCorrupt
from rollcage_server.roles import Principal
from rollcage_views import Requests, read_run
from rollcage_workflow.engine.worker import Worker
from rollcage_workflow.orders import Commands

SHELF: dict[str, str | None] = {}


@tool(
    name="shelf_put",
    effect="write",
    undo=lambda args, before: [_put_back(args["key"], before)],
    observe=lambda args: {args["key"]: SHELF.get(args["key"])},
)
def shelf_put(key: str, text: str | None) -> str:
    SHELF[key] = text
    return "put"


def _put_back(key: str, before: Any) -> Compensation:
    return compensate(shelf_put, key=key, text=before[key])


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def placed(place: str, tmp_path: Path) -> Iterator[World]:
    SHELF.clear()
    if place == "postgres":
        with new_store() as url:
            yield _filled(tmp_path, url)
        return
    places = {"folder": str(tmp_path / "runs"), "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    yield _filled(tmp_path, places[place])


def _filled(root: Path, url: str) -> World:
    made = World(root, url)
    made.fill()
    return made


def lines(world: World) -> list[tuple[str, str, str, str]]:
    return [(x.who, x.action, x.outcome, x.detail) for x in Audit(world.store).lines()]


async def post(
    client: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None, status: int = 200
) -> Any:
    answer = await client.post(f"/api/v1{path}", json=body or {})
    assert answer.status_code == status, answer.text
    return answer.json()


# --- approvals -----------------------------------------------------------------------------------


async def test_a_call_is_approved_with_other_arguments_and_runs_with_them(placed: World) -> None:
    at = f"/approvals/{placed.approval}"
    async with placed.client(Role.APPROVER) as client:
        said = await post(client, f"{at}/approve", {"args": {"key": "edited"}, "reason": "less"})
        assert said["decision"]["by"] == "approver person"
        again = await post(client, f"{at}/approve", status=409)
        assert again["error"]["code"] == "approval_invalid"
    with placed.asking("asked") as session:
        assert served_write(f"{SECRET} asked").endswith("edited")
        run = session.run_id
    step = read_run(trace_of(placed.store, run)).steps[-1]
    assert (step.decided_by, step.args) == ("approver person", {"key": "edited"})
    assert lines(placed) == [
        ("approver person", "approve", "begun", ""), ("approver person", "approve", "done", ""),
        ("approver person", "approve", "begun", ""),
        ("approver person", "approve", "refused", "approval_invalid"),
    ]  # fmt: skip


async def test_a_secret_inside_an_argument_is_not_edited_and_lies_nowhere(placed: World) -> None:
    @tool(name="served_login", effect="write")
    def served_login(login: dict[str, SecretStr]) -> str:
        return "in"

    with pytest.raises(ApprovalRequired), placed.asking("login"):
        served_login({"password": SecretStr("what nobody knows")})
    queue = Requests(placed.store)
    (asked,) = set(queue.ids()) - {placed.approval}
    other = {"args": {"login": {"password": "typed by hand"}}}
    async with placed.client(Role.APPROVER) as client:
        said = await post(client, f"/approvals/{asked}/approve", other, 400)
    assert "holds a secret" in said["error"]["message"]
    kept = queue.get(asked)
    assert kept is not None
    assert kept.decision is None


@pytest.mark.parametrize("name", ["The  Requester", "th\u0435 r\u0435quest\u0435r"])
async def test_nobody_approves_what_they_asked_for(placed: World, name: str) -> None:
    _, text = placed.tokens.create(name, [Role.APPROVER], 60)
    async with placed.client(headers={"Authorization": f"Bearer {text}"}) as client:
        said = await post(client, f"/approvals/{placed.approval}/approve", status=409)
        assert "can't approve it" in said["error"]["message"]
        said = await post(client, f"/approvals/{placed.approval}/respond", {"value": 1}, 409)
    assert lines(placed)[-1][2:] == ("refused", "approval_invalid")


async def test_a_call_is_answered_in_place_of_its_tool_or_rejected(placed: World) -> None:
    second = placed.ask("second")
    async with placed.client(Role.APPROVER) as client:
        said = await post(client, f"/approvals/{placed.approval}/respond", {"value": "instead"})
        assert said["decision"]["value"] == "instead"
        said = await post(client, f"/approvals/{second}/reject", {"reason": "no"})
        assert said["decision"]["decision"] == "rejected"


# --- runs ----------------------------------------------------------------------------------------


async def test_a_step_is_resolved_and_its_run_goes_on(placed: World) -> None:
    at = f"/runs/{placed.runs['lost']}"
    async with placed.client(Role.OPERATOR) as client:
        await post(client, f"{at}/resolve", {"step": 9, "happened": True}, 409)
        said = await post(client, f"{at}/resolve", {"step": 1, "happened": True, "result": "ok"})
        assert said["outcome"] == {"status": "ok", "value": "ok"}
        again = await post(client, f"{at}/resolve", {"step": 1, "happened": False}, 409)
        assert again["error"]["code"] == "step_not_unknown"
    with placed.session("lost"):
        assert served_write("lost") == "ok"


async def test_a_run_is_stopped_lifted_and_set_aside(placed: World) -> None:
    async with placed.client(Role.OPERATOR) as client:
        session = placed.session("live")
        with pytest.raises(RunStopped, match="operator person"), session:
            served_write("one")
            await post(client, f"/runs/{session.run_id}/stop", {"reason": "enough"})
            served_write("two")
        at = f"/runs/{session.run_id}"
        await post(client, f"{at}/lift")
        await post(client, f"{at}/lift", status=409)
        await post(client, f"{at}/abandon", {"reason": "done with"})
        await post(client, f"{at}/abandon", status=409)
    assert run_info(placed.store, session.run_id).status == "abandoned"


async def test_a_stop_is_refused_where_it_can_not_be_kept_or_nothing_runs(placed: World) -> None:
    lost, fine = placed.runs["lost"], placed.runs["fine"]
    async with placed.client(Role.OPERATOR) as client:
        for reason in ("\u505c" * 1900, "\x01" * 1000, "x" * 2001):
            before = len(lines(placed))
            said = await post(client, f"/runs/{lost}/stop", {"reason": reason}, 422)
            assert "reason" in said["error"]["message"]
            assert len(lines(placed)) == before
        over = await post(client, f"/runs/{fine}/stop", {"reason": "enough"}, 409)
        assert over["error"]["code"] == "order_refused"
        assert "ended as 'ok'" in over["error"]["message"]
        assert 'action="/runs/' + fine + '/stop"' not in (await client.get(f"/runs/{fine}")).text
        assert 'action="/runs/' + lost + '/stop"' in (await client.get(f"/runs/{lost}")).text
    assert [order_of(placed.store, run) for run in (lost, fine)] == [None, None]


async def test_a_run_is_paused_seen_as_such_and_goes_on(placed: World) -> None:
    reason = "the budget <b>"
    with placed.session("live") as session, ThreadPoolExecutor(1) as pool:
        served_write("one")
        at = f"/runs/{session.run_id}"
        async with placed.client(Role.OPERATOR) as client:
            assert f'action="{at}/pause"' in (await client.get(at)).text
            assert (await post(client, f"{at}/pause", {"reason": reason}))["paused"] is True
            given = pool.submit(session.call, served_write, key="two")
            page = (await client.get(at)).text
            assert "Paused by operator person since" in page
            assert f'action="{at}/unpause"' in page
            assert f'action="{at}/stop"' in page
            assert f'action="{at}/pause"' not in page
            jobs = (await client.get("/api/v1/jobs")).json()["jobs"]
            (job,) = [each for each in jobs if each["run"] == session.run_id]
            assert (job["status"], job["paused"]["by"]) == ("running", "operator person")
            assert ">paused</span>" in (await client.get("/")).text
            async with placed.client(Role.VIEWER) as viewer:
                seen = (await viewer.get(f"/api/v1{at}")).json()["paused"]
                assert (seen["kind"], seen["reason"]) == ("pause", reason)
                assert "the budget &lt;b&gt;" in (await viewer.get(at)).text
            async with placed.client(Role.OBSERVER) as observer:
                assert (await observer.get(f"/api/v1{at}")).json()["paused"]["reason"] == ""
                assert "the budget" not in (await observer.get(at)).text
            assert not given.done()
            steps = read_run(trace_of(placed.store, session.run_id)).steps
            assert [step.state for step in steps if step.state != "not_started"] == ["ran"]
            assert (await post(client, f"{at}/lift", status=409))["error"][
                "code"
            ] == "order_refused"
            assert (await post(client, f"{at}/unpause"))["paused"] is False
            given.result(60)
            await post(client, f"{at}/unpause", status=409)
    said = [(action, outcome) for _, action, outcome, _ in lines(placed)]
    for each in (("pause", "done"), ("lift", "refused"), ("unpause", "done")):
        assert each in said
    fine = placed.runs["fine"]
    async with placed.client(Role.OPERATOR) as client:
        assert f'action="/runs/{fine}/pause"' not in (await client.get(f"/runs/{fine}")).text
        await post(client, f"/runs/{fine}/pause", status=409)


async def test_a_paused_run_is_stopped_from_its_page(placed: World) -> None:
    session = placed.session("live")
    with pytest.raises(RunStopped), session, ThreadPoolExecutor(1) as pool:
        at = f"/runs/{session.run_id}"
        async with placed.client(Role.OPERATOR) as client:
            await post(client, f"{at}/pause")
            given = pool.submit(session.call, served_write, key="one")
            await post(client, f"{at}/stop", {"reason": "enough"})
            with pytest.raises(SessionHalted):
                given.result(60)
            await post(client, f"{at}/unpause", status=409)


# --- undo ----------------------------------------------------------------------------------------


async def worked(world: World) -> None:
    """A worker that has the tools takes all that is asked for."""
    worker = Worker(open_store(world.url), {}, tools=[shelf_put], name="w1")
    for key in Commands(open_store(world.url)).open_keys():
        await worker.take(key)


async def test_an_undo_is_planned_refused_where_it_changed_and_confirmed_once(
    placed: World,
) -> None:
    with Session("shelf", store=placed.url) as session:
        shelf_put("a", "one")
        shelf_put("b", "two")
    at = f"/runs/{session.run_id}"
    async with placed.client(Role.OPERATOR) as client:
        asked = await post(client, f"{at}/undo-plan", {"wait": 0}, 202)
        assert asked["outcome"] == "waiting"
        await worked(placed)
        planned = (await client.get(f"/api/v1{at}/commands/{asked['command']}")).json()
        assert [step["state"] for step in planned["data"]["steps"]] == ["reversible"] * 2
        confirm = {"plan": asked["command"], "digest": planned["data"]["digest"], "wait": 0}
        wrong = await post(client, f"{at}/undo", confirm | {"digest": "0" * 64}, 409)
        assert wrong["error"]["code"] == "plan_changed"
        SHELF["b"] = "somebody else's"
        await post(client, f"{at}/undo", confirm, 202)
        await worked(placed)
        changed = await post(client, f"{at}/undo", confirm, 409)
        assert changed["error"]["code"] == "plan_changed"
        assert SHELF == {"a": "one", "b": "somebody else's"}

        SHELF["b"] = "two"
        asked = await post(client, f"{at}/undo-plan", {"wait": 0}, 202)
        await worked(placed)
        planned = (await client.get(f"/api/v1{at}/commands/{asked['command']}")).json()
        confirm = {"plan": asked["command"], "digest": planned["data"]["digest"], "wait": 0}
        once, twice = [await post(client, f"{at}/undo", confirm, 202) for _ in range(2)]
        assert once["command"] == twice["command"]
        await worked(placed)
        done = await post(client, f"{at}/undo", confirm)
        assert (done["outcome"], done["worker"]) == ("undone", "w1")
        assert SHELF == {"a": None, "b": None}
        other = f"/runs/{placed.runs['fine']}"
        await post(client, f"{other}/undo", confirm, 404)
        for key in ("x", "../x", "nothing.plan.1"):
            await post(client, f"{at}/undo", confirm | {"plan": key}, 404)


async def test_what_changes_when_the_worker_begins_is_seen_and_what_was_cut_off_is_told(
    placed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is compared under the lock of the run, and the answer says what stays undone."""
    with Session("shelf", store=placed.url) as session:
        for key in "abc":
            shelf_put(key, key)
    at = f"/runs/{session.run_id}"

    async def undone_as(before: Callable[[], None]) -> dict[str, Any]:
        """The answer to an undo that was confirmed, before which something happens."""

        async def late(*given: Any, **options: Any) -> Any:
            before()
            return await aundo_run(*given, **options)

        asked = await post(client, f"{at}/undo-plan", {"wait": 0}, 202)
        await worked(placed)
        planned = (await client.get(f"/api/v1{at}/commands/{asked['command']}")).json()
        confirm = {"plan": asked["command"], "digest": planned["data"]["digest"], "wait": 0}
        await post(client, f"{at}/undo", confirm, 202)
        with monkeypatch.context() as patch:
            patch.setattr("rollcage_workflow.engine.worker.aundo_run", late)
            await worked(placed)
        said: dict[str, Any] = (await post(client, f"{at}/undo", confirm, 409))["error"]
        assert said["code"] == "plan_changed"
        return said

    async with placed.client(Role.OPERATOR) as client:
        said = await undone_as(lambda: SHELF.update(b=None))
        assert SHELF == {"a": "a", "b": None, "c": "c"}
        assert "step 2 (shelf_put) was reversible and is nothing now" in said["message"]
        assert "Nothing was undone:" in said["message"]
        SHELF["b"] = "b"

        def cut_off() -> None:
            """Another undo, of which a kill leaves the first half."""

            class Shelf(dict[str, str | None]):
                def __setitem__(self, key: str, text: str | None) -> None:
                    if key == "b":
                        raise Killed
                    super().__setitem__(key, text)

            with monkeypatch.context() as patch:
                patch.setattr(sys.modules[__name__], "SHELF", half := Shelf(SHELF))
                with pytest.raises(Killed):
                    undo_run(placed.url, session.run_id, tools=[shelf_put])
            SHELF.update(half, a="somebody else's")

        said = await undone_as(cut_off)
        assert SHELF == {"a": "somebody else's", "b": "b", "c": None}
        assert "An earlier undo of steps 3, 2 had begun, and its effects stay" in said["message"]
        assert "othing was" not in said["message"]


class Killed(BaseException):
    """A worker is killed."""


@pytest.mark.parametrize("killed_at", ["a", "the result"])
async def test_an_undo_whose_worker_was_killed_is_gone_on_with(
    placed: World, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    class Shelf(dict[str, str | None]):
        def __setitem__(self, key: str, text: str | None) -> None:
            if key == killed_at and text is None:
                raise Killed
            super().__setitem__(key, text)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with Session("shelf", store=placed.url) as session:
        shelf_put("a", "one")
        shelf_put("b", "two")
    at = f"/runs/{session.run_id}"
    async with placed.client(Role.OPERATOR) as client:
        asked = await post(client, f"{at}/undo-plan", {"wait": 0}, 202)
        await worked(placed)
        planned = (await client.get(f"/api/v1{at}/commands/{asked['command']}")).json()
        confirm = {"plan": asked["command"], "digest": planned["data"]["digest"], "wait": 0}
        await post(client, f"{at}/undo", confirm, 202)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], "SHELF", Shelf(SHELF))
            if killed_at == "the result":
                patch.setattr(Commands, "done", killed)
            with pytest.raises(Killed):
                await worked(placed)
            half = dict(SHELF)
        assert half == {"a": "one" if killed_at == "a" else None, "b": None}
        SHELF.update(half)
        await worked(placed)
        assert (await post(client, f"{at}/undo", confirm))["outcome"] == "undone"
    assert SHELF == {"a": None, "b": None}


async def test_the_undo_of_a_damaged_run_is_refused_and_not_waited_for(
    placed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("shelf", store=placed.url) as session:
        shelf_put("a", "one")

    def damaged(*_: Any, **__: Any) -> Any:
        raise TraceCorrupt("the trace", 2, "its hash does not follow")

    at = f"/runs/{session.run_id}"
    async with placed.client(Role.OPERATOR) as client:
        asked = await post(client, f"{at}/undo-plan", {"wait": 0}, 202)
        monkeypatch.setattr("rollcage_workflow.engine.worker.aplan_undo", damaged)
        await worked(placed)
        said = (await client.get(f"/api/v1{at}/commands/{asked['command']}")).json()
    assert said["outcome"] == "refused"
    assert "its hash does not follow" in said["detail"]


async def test_an_undo_is_confirmed_while_the_server_waits_for_the_worker(placed: World) -> None:
    with Session("shelf", store=placed.url) as session:
        shelf_put("a", "one")
    async with placed.client(Role.OPERATOR) as client:
        asking = asyncio.create_task(post(client, f"/runs/{session.run_id}/undo-plan"))
        for _ in range(500):
            if Commands(open_store(placed.url)).open_keys():
                break
            await asyncio.sleep(0.01)
        await worked(placed)
        assert (await asking)["outcome"] == "planned"


# --- workflows -----------------------------------------------------------------------------------


async def test_an_execution_is_asked_for_paused_resumed_signalled_and_cancelled(
    placed: World,
) -> None:
    hostile = "<script>alert(1)</script>/../x"
    async with placed.client(Role.OPERATOR) as client:
        start = {"id": hostile, "plan": "nightly", "inputs": {"city": SECRET}}
        assert (await post(client, "/workflows/start", start))["started"]
        assert not (await post(client, "/workflows/start", start))["started"]
        paused = await post(client, "/workflows/pause", {"id": hostile, "reason": "wait"})
        assert paused["execution"]["status"] == "paused"
        await post(client, "/workflows/resume", {"id": hostile})
        assert (await post(client, "/workflows/signal", {"id": hostile, "name": "go"}))["sent"]
        gone = await post(client, "/workflows/cancel", {"id": hostile})
        assert gone["execution"]["status"] == "cancelled"
        await post(client, "/workflows/pause", {"id": "nobody's"}, 404)
        await post(client, "/workflows/pause", {"id": hostile}, 409)
        await post(client, "/workflows/signal", {"id": "nobody's", "name": "go"}, 404)
        seen = await client.get("/workflow", params={"id": hostile})
        assert (seen.status_code, "<script>alert" in seen.text) == (200, False)
    assert [line[1:3] for line in lines(placed)[:2]] == [
        ("workflow start", "begun"), ("workflow start", "done"),
    ]  # fmt: skip


# --- forms ---------------------------------------------------------------------------------------


async def test_forms_do_the_same_without_javascript(placed: World) -> None:
    async with placed.client(headers={"Origin": "https://localhost"}) as client:
        await client.post("/login", data={"token": placed.token[Role.ADMIN]})
        inbox = (await client.get("/inbox")).text
        csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', inbox)[0]
        assert f'action="/approvals/{placed.approval}/approve"' in inbox
        fields = {"csrf": csrf, "args_json": '{"key": "by form"}', "reason": ""}
        answer = await client.post(f"/approvals/{placed.approval}/approve", data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/inbox")
        at = f"/runs/{placed.runs['lost']}/resolve"
        broken = {"csrf": csrf, "step": "1", "happened": "true", "result_json": "{"}
        assert (await client.post(at, data=broken)).status_code == 400
        more = {"csrf": csrf, "step": "1", "happened": "true", "more": "x"}
        assert (await client.post(at, data=more)).status_code == 400
        fine = {"csrf": csrf, "step": "1", "happened": "false"}
        assert (await client.post(at, data=fine)).status_code == 303
        seen = (await client.get("/audit")).text
        assert seen.count("admin person") >= 5


# --- the audit log -------------------------------------------------------------------------------


def test_a_line_of_the_audit_log_that_is_changed_or_gone_shows(placed: World) -> None:
    audit = Audit(placed.store)
    who = Principal("ada", frozenset({Role.ADMIN}), 2e10, "token", "1")
    for number in range(5):
        audit.add(who, "admin", "stop", f"run {number} \ud800", "done")
    assert [line.number for line in audit.lines()] == [1, 2, 3, 4, 5]
    assert [line.number for line in audit.lines(newest=2)] == [4, 5]
    assert len(list(audit.export())) == 5
    third = placed.store.get("actions", "000000000003")
    assert third is not None
    drop(placed.store, "actions", "000000000003")
    with pytest.raises(AuditCorrupt):
        audit.lines()
    placed.store.swap("actions", "000000000003", None, third.replace(b"ada", b"bob"))
    with pytest.raises(AuditCorrupt, match="line 3"):
        audit.lines()
    drop(placed.store, "actions", "000000000003")
    placed.store.swap("actions", "000000000003", None, third)
    assert orjson.loads(list(audit.export())[2])["target"] == "run 2 ?"


async def test_a_log_that_was_cut_at_its_end_shows_to_who_has_kept_its_head(placed: World) -> None:
    audit = Audit(placed.store)
    who = Principal("ada", frozenset({Role.ADMIN}), 2e10, "token", "1")
    async with placed.client(Role.ADMIN) as client:

        async def checked(status: int, **kept: Any) -> Any:
            answer = await client.get("/api/v1/audit/check", params=kept)
            assert answer.status_code == status, answer.text
            return answer.json()

        assert await checked(200) == {"lines": 0, "head": "0" * 64}
        for number in range(4):
            audit.add(who, "admin", "stop", str(number), "done")
        kept = await checked(200)
        assert (kept["lines"], kept["head"]) == (4, audit.lines()[-1].hash)
        kept = {"number": kept["lines"], "head": kept["head"]}
        audit.add(who, "admin", "stop", "later", "done")
        assert (await checked(200, **kept))["lines"] == 5
        for key in ("000000000005", "000000000004"):
            drop(placed.store, "actions", key)
        assert len(audit.lines()) == 3, "the chain alone does not show it"
        said = await checked(500, **kept)
        assert said["error"]["code"] == "audit_corrupt"
        assert "it had 4 lines, 3 are left" in said["error"]["message"]
        audit.add(who, "admin", "stop", "another", "done")
        said = await checked(500, **kept)
        assert "line 4 of the audit log was replaced" in said["error"]["message"]


def test_lines_that_are_written_at_once_all_stand_in_one_chain(placed: World) -> None:
    who = Principal("ada", frozenset({Role.ADMIN}), 2e10, "token", "1")

    def add(number: int) -> None:
        Audit(open_store(placed.url)).add(who, "admin", "stop", str(number), "done")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    assert sorted(int(line.target) for line in Audit(placed.store).lines()) == list(range(20))


def test_a_log_that_others_add_to_while_it_is_exported_is_whole(
    placed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = Principal("ada", frozenset({Role.ADMIN}), 2e10, "token", "1")
    audit, other = Audit(placed.store), Audit(open_store(placed.url))
    audit.add(who, "admin", "stop", "1", "done")
    list_keys = type(placed.store).keys

    def keys_meanwhile(own: Any, kind: str, after: str = "") -> Any:
        if not after:
            other.add(who, "admin", "stop", "2", "done")
        found = list_keys(own, kind, after)
        if not after:
            other.add(who, "admin", "stop", "3", "done")
        return found

    monkeypatch.setattr(type(placed.store), "keys", keys_meanwhile)
    assert [line.target for line in audit.lines()][:2] == ["1", "2"]
    drop(placed.store, "actions", "000000000002")
    with pytest.raises(AuditCorrupt):
        audit.lines()
