"""Every role at every route; a new route is in this matrix, or the server does not start."""

import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from mission import REASON, RESULT, ROLES, SECRET, World
from rollcage_server import ROLES as RIGHTS
from rollcage_server import Right, Role
from rollcage_server.access import check_all_ruled, rights_of

VALUES = (SECRET, RESULT, REASON)


def addresses(world: World, path: str) -> list[str]:
    """A path with each run, step, approval and the like that there is."""
    found = []
    named = {"number": "1", "name": "rollcage.css", "approval": world.approval, "key": "a.b"}
    for run in world.runs.values():
        named["run"] = run
        named["target"] = world.approval if "/approvals/" in path else run
        filled = path
        for each in re.findall(r"\{(\w+)\}", path):
            filled = filled.replace(f"{{{each}}}", named[each])
        query = {"/diff": f"?a={run}&b={run}", "/workflow": "?id=an%20execution"}
        found.append(filled + query.get(path.removeprefix("/api/v1"), ""))
    return list(dict.fromkeys(found))


def body(path: str) -> dict[str, Any]:
    """What is sent along where a route would wait for a worker."""
    return {"data": {"wait": "0"}} if path.endswith("/undo-plan") else {}


def is_a_stream(path: str) -> bool:
    return path.endswith(("/live", "/events"))  # in test_live.py: they have no end


async def answers(world: World, role: Role | None) -> dict[tuple[str, str], list[httpx.Response]]:
    found = {}
    async with world.client(role) as client:
        for (method, path), right in rights_of(world.app).items():
            if is_a_stream(path) and (role is not None and right in RIGHTS[role]):
                continue
            found[method, path] = [
                await client.request(method, each, **body(path)) for each in addresses(world, path)
            ]
    return found


async def test_nobody_without_a_role_reaches_anything(world: World) -> None:
    rights = rights_of(world.app)
    for at, each in (await answers(world, None)).items():
        for answer in each:
            assert not any(value in answer.text for value in VALUES), at
            assert not any(run in answer.text for run in world.runs.values()), at
            assert rights[at] is None or answer.status_code in (303, 401), at


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_reaches_what_its_rights_allow_and_nothing_else(
    world: World, role: Role
) -> None:
    rights = rights_of(world.app)
    for at, each in (await answers(world, role)).items():
        right = rights[at]
        if right is None:
            continue
        allowed = right in RIGHTS[role]
        for answer in each:
            assert (answer.status_code == 403) is not allowed, (at, answer.status_code)
            assert answer.status_code < 500, (at, answer.text)


async def test_an_observer_sees_no_value_anywhere_and_a_viewer_does(world: World) -> None:
    for at, each in (await answers(world, Role.OBSERVER)).items():
        for answer in each:
            assert not any(value in answer.text for value in VALUES), at
    seen = [a.text for each in (await answers(world, Role.VIEWER)).values() for a in each]
    for value in VALUES:
        assert any(value in text for text in seen), value


def test_a_route_that_names_no_right_is_not_served() -> None:
    app = FastAPI(openapi_url=None)
    check_all_ruled(app)
    app.get("/forgotten")(lambda: None)
    with pytest.raises(AssertionError, match="/forgotten"):
        check_all_ruled(app)


def test_each_right_is_held_by_a_role_and_asked_for_by_a_route(world: World) -> None:
    assert {right for held in RIGHTS.values() for right in held} == set(Right)
    assert RIGHTS[Role.OBSERVER] == {Right.SEE}
