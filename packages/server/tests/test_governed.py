"""The registry of tools on its page, and a proposal that is approved there."""

from typing import Any

import pytest
from markup import HOSTILE, Markup
from mission import World
from rollcage import Contract
from rollcage_governance import Registry
from rollcage_server import Role
from rollcage_views import visible


def contract(name: str, said: str = "Sends a letter.", **more: Any) -> Contract:
    return Contract(name=name, description=said, parameters={"type": "object"}, **more)


@pytest.fixture
def registry(world: World) -> Registry:
    made = Registry(world.store)
    made.propose(contract("served_write", effect="write"), by="ann", why="a-private-reason")
    return made


def digest(registry: Registry, name: str = "served_write") -> str:
    proposal = registry.tool(name).proposal
    assert proposal is not None
    return proposal.digest


async def test_a_proposal_is_looked_at_and_approved_by_its_digest(
    world: World, registry: Registry
) -> None:
    seen = digest(registry)
    async with world.client(Role.APPROVER) as client:
        text = (await client.get("/tools")).text
        assert "Sends a letter." in text
        assert f"--digest {seen}" in text
        assert 'href="/search?tool=served_write"' in text
        registry.propose(contract("served_write", "Deletes it."), by="ann")
        body = {"tool": "served_write", "digest": seen}
        answer = await client.post("/api/v1/tools/approve", json=body)
        assert (answer.status_code, registry.tool("served_write").pin) == (409, None)
        body["digest"] = digest(registry)
        answer = await client.post("/tools/approve", data=body | {"reason": "looked at"})
        assert answer.status_code == 303
        (told,) = (await client.get("/api/v1/tools")).json()["tools"]
        assert (told["status"], told["approved_by"]) == ("approved", "approver person")
        assert (await client.post("/tools/approve", data=body)).status_code == 409
    async with world.client(Role.ADMIN) as client:
        audit = (await client.get("/audit")).text
    assert audit.count("tool approve") == 6  # each began, and each ended


async def test_nobody_approves_what_they_proposed_nor_without_the_role(
    world: World, registry: Registry
) -> None:
    registry.propose(contract("own"), by="approver person")
    body = {"tool": "own", "digest": digest(registry, "own")}
    async with world.client(Role.APPROVER) as client:
        assert "Approve own" not in (await client.get("/tools")).text
        assert (await client.post("/tools/approve", data=body)).status_code == 409
    for role in (Role.VIEWER, Role.OPERATOR, Role.OBSERVER):
        async with world.client(role) as client:
            assert (await client.post("/tools/approve", data=body)).status_code == 403
            assert "Approve own" not in (await client.get("/tools")).text
    assert registry.tool("own").pin is None


async def test_an_observer_is_shown_no_contract_and_no_reason(
    world: World, registry: Registry
) -> None:
    async with world.client(Role.OBSERVER) as client:
        text = (await client.get("/tools")).text
    assert "served_write" in text
    assert "a-private-reason" not in text
    assert "Sends a letter." not in text


async def test_what_is_proposed_is_text(world: World) -> None:
    registry = Registry(world.store)
    named = [each for each in HOSTILE if each.isprintable()]
    for text in named:
        registry.propose(contract(text, text), by="ann", why=text)
    async with world.client(Role.ADMIN) as client:
        page = Markup((await client.get("/tools")).text)
    assert not {"img", "svg"} & page.tags
    assert all(each.startswith(("/", "#")) for each in page.addresses)
    assert not any(name.startswith("on") for name in page.attributes)
    for text in named:
        assert visible(text) in page.text
