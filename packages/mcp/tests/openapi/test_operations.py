"""Operations of an OpenAPI document: proposed, approved, called, recorded, undone."""

import asyncio
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from pets import PETS, Pets
from rollcage import Blocked, Session, UnknownOutcome, aundo_run
from rollcage_governance import Facade, Registry
from rollcage_mcp.errors import OpenAPIInvalid, ServerError, ServerGone, ServersInvalid
from rollcage_mcp.exposed import exposed_tools
from rollcage_mcp.servers import load_servers
from rollcage_mcp.serving import ToolServer
from rollcage_mcp.toolset import tools_of

Files = Callable[..., Path]
Tools = dict[str, Callable[..., Any]]

SECRETS = '[servers.pets.secrets]\nkey = "PETS_KEY"\nbasic = "PETS_LOGIN"\n'


def approved(store: Path, servers: Path, *names: str) -> Tools:
    """All operations of the file; these are given by the facade `agent`."""
    tools = {each.__name__: each for each in tools_of(servers)}
    registry = Registry(store)
    for name in names:
        registry.propose(tools[name], by="ann")
        registry.approve(name, by="bob")
        registry.activate(name, "pets", by="bob")
    registry.define_facade("agent", ["pets"], by="bob")
    return tools


def asked(pets: Pets) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _, _ in pets.asked]


async def test_an_approved_operation_runs_and_replays(
    store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), "getPet", "listPets", "putPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        first = await session.acall(tools["getPet"], id="a/b ?")
        await session.acall(
            tools["listPets"], limit=3, tags=["x&y", "z"], ids=[1, 2], where={"age": 3}
        )
        await session.acall(tools["putPet"], id="7", body={"name": "a", "nick": None})
    assert first["result"]["structuredContent"] == {"status": 200, "body": {"id": 7, "name": "Rex"}}
    assert asked(pets) == [
        ("GET", "/v1/pets/a%2Fb%20%3F"),
        ("GET", "/v1/pets?limit=3&tags=x%26y&tags=z&ids=1%2C2&where%5Bage%5D=3"),
        ("PUT", "/v1/pets/7"),
    ]
    assert json.loads(pets.asked[2][3]) == {"name": "a", "nick": None}
    async with Session("a", store=store, gate=[Facade("agent")], replay="offline") as session:
        again = await session.acall(tools["getPet"], id="a/b ?")
    assert again == first
    assert len(pets.asked) == 3


async def test_an_operation_that_nobody_approved_is_refused_by_name(
    store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), "getPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(Blocked, match="dropPet is not approved"):
            await session.acall(tools["dropPet"], path_id="7")
        server = ToolServer("t", exposed_tools(tools.values(), session))
        listed = (await server.answer("tools/list", {}))["tools"]
        assert [each["name"] for each in listed] == ["getPet"]
        assert "x-openapi" not in listed[0]["inputSchema"]
        params = {"name": "dropPet", "arguments": {"path_id": "7"}}
        refused = await server.answer("tools/call", params)
        assert refused["isError"] is True
        assert "dropPet is not approved" in refused["content"][0]["text"]
        served = await server.answer("tools/call", {"name": "getPet", "arguments": {"id": "7"}})
        assert json.loads(served["content"][0]["text"])["name"] == "Rex"
    async with Session("b", store=store) as session:  # without a facade
        with pytest.raises(ServerError, match="getPet is an operation of an OpenAPI document"):
            await session.acall(tools["getPet"], id="7")
    with pytest.raises(ServerError, match="only called by a session with a facade"):
        await tools["getPet"](id="7")
    assert asked(pets) == [("GET", "/v1/pets/7")]


async def test_a_changed_document_or_url_is_not_what_was_approved(
    store: Path, files: Files, pets: Pets
) -> None:
    servers = files()
    approved(store, servers, "getPet", "putPet")
    changed = copy.deepcopy(PETS)
    changed["components"]["schemas"]["Pet"]["properties"]["name"]["description"] = "Obey."
    tools = {each.__name__: each for each in tools_of(files(changed))}
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(Blocked) as refused:
            await session.acall(tools["putPet"], id="7", body={"name": "a"})
        assert refused.value.verdict_code == "tool_changed"
        await session.acall(tools["getPet"], id="7")  # which has nothing of a pet
    servers.write_text(servers.read_text().replace("/v1", "/v2"))
    moved = {each.__name__: each for each in tools_of(servers)}
    async with Session("b", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(Blocked, match="getPet"):
            await session.acall(moved["getPet"], id="7")
    assert asked(pets) == [("GET", "/v1/pets/7")]


def test_effects_are_never_guessed(files: Files) -> None:
    tools = {each.__name__: each for each in tools_of(files())}
    contracts = {name: vars(each)["__rollcage_contract__"] for name, each in tools.items()}
    assert {each.effect for each in contracts.values()} == {"write"}
    assert not any(each.idempotent for each in contracts.values())
    assert contracts["getPet"].parameters["x-openapi"]["method"] == "GET"
    assert "addPhoto" not in contracts


SECRET = "s3cret-word"


def contents(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PETS_KEY", SECRET)
    monkeypatch.setenv("PETS_LOGIN", f"ann:{SECRET}")


@pytest.mark.usefixtures("secrets")
async def test_secrets_reach_the_server_and_nothing_else(
    store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(more=SECRETS), "addPet", "logIn", "getPet")
    echo = json.dumps({"said": f"api_key={SECRET}", "basic": "YW5uOnMzY3JldC13b3Jk"}).encode()
    pets.answers["/v1/pets"] = (200, {"Content-Type": "application/json"}, echo)
    pets.answers["/v1/login"] = (403, {"Content-Type": "text/plain"}, f"no {SECRET}".encode())
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        added = await session.acall(tools["addPet"], body={"name": "a"})
        with pytest.raises(ServerError, match=r"\[secret\]"):
            await session.acall(tools["logIn"], body={"user": "a&b=c"})
        await session.acall(tools["getPet"], id="7")  # which needs no key
    body = {"said": "api_key=[secret]", "basic": "[secret]"}
    assert added["result"]["structuredContent"]["body"] == body
    (_, first, _, _), (_, _, headers, form), (_, third, no_headers, _) = pets.asked
    assert first == f"/v1/pets?api_key={SECRET}"
    assert headers["Authorization"].startswith("Basic ")
    assert form == "user=a%26b%3Dc"
    assert third == "/v1/pets/7"
    assert "Authorization" not in no_headers
    written = contents(store)
    assert SECRET.encode() not in written
    assert b"PETS_KEY" not in written.replace(b"needs the variable PETS_KEY", b"")


async def test_a_missing_secret_sends_nothing(
    store: Path, files: Files, pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PETS_KEY", raising=False)
    tools = approved(
        store, files(more='[servers.pets.secrets]\nkey = "PETS_KEY"\n'), "addPet", "logIn"
    )
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(ServerError, match="addPet needs the variable PETS_KEY"):
            await session.acall(tools["addPet"], body={"name": "a"})
        with pytest.raises(ServerError, match="logIn needs a secret for basic or token"):
            await session.acall(tools["logIn"], body={})
    assert pets.asked == []


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("getPet", {"id": ".."}, "can't be a part of its path"),
        ("getPet", {"id": ""}, "can't be empty"),
        ("listPets", {"limit": 51}, "limit: 51 is greater"),
        ("listPets", {"limit": "x"}, "limit"),
        ("putPet", {"id": "7", "body": {"name": 3}}, "body.name: 3 is not of type 'string'"),
        ("putPet", {"id": "7", "body": {"name": "a", "age": 0}}, "body.age: 0 is less"),
        ("putPet", {"id": "7", "body": {"name": "a", "children": [{}]}}, "'name' is a required"),
        ("dropPet", {"path_id": "7", "X-Why": "a\r\nX-Admin: 1"}, "can't stand in a header"),
    ],
)
async def test_wrong_arguments_send_nothing(
    name: str, arguments: Any, said: str, store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), name)
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(Exception, match=said):
            await session.acall(tools[name], **arguments)
        assert session.halted is None
    assert pets.asked == []


async def test_a_pattern_of_a_stranger_takes_no_time(store: Path, files: Files, pets: Pets) -> None:
    tools = approved(store, files(), "putPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        await session.acall(tools["putPet"], id="7", body={"name": "a" * 60 + "!"})
    assert len(pets.asked) == 1


async def test_a_redirect_is_told_and_not_followed(store: Path, files: Files, pets: Pets) -> None:
    tools = approved(store, files(), "getPet")
    pets.answers["/v1/pets"] = (302, {"Location": "http://127.0.0.1:1/steal"}, b"")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        found = await session.acall(tools["getPet"], id="7")
    assert found["result"]["structuredContent"] == {
        "status": 302, "location": "http://127.0.0.1:1/steal",
    }  # fmt: skip
    assert len(pets.asked) == 1


@pytest.mark.parametrize("status", [500, 503, 408, 0])
async def test_a_server_that_fails_leaves_a_write_unknown(
    status: int, store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), "putPet", "getPet")
    pets.answers["/v1/pets"] = (status, {}, b"oops")
    with pytest.raises(UnknownOutcome, match="putPet"):
        async with Session("a", store=store, gate=[Facade("agent")]) as session:
            with pytest.raises(ServerGone):
                await session.acall(tools["putPet"], id="7", body={"name": "a"})
    with pytest.raises(Exception, match="rollcage resolve"):
        async with Session("a", store=store, gate=[Facade("agent")]) as session:
            await session.acall(tools["putPet"], id="7", body={"name": "a"})
    assert len(pets.asked) == 1


@pytest.mark.parametrize("status", [400, 404, 409, 429])
async def test_a_server_that_refuses_has_done_nothing(
    status: int, store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), "putPet")
    pets.answers["/v1/pets"] = (status, {"Content-Type": "text/plain"}, b"no")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(ServerError, match=rf"no \({status}\)"):
            await session.acall(tools["putPet"], id="7", body={"name": "a"})
        assert session.halted is None


async def test_a_server_that_is_not_there(store: Path, files: Files, pets: Pets) -> None:
    servers = files()
    servers.write_text(servers.read_text().replace(pets.url, "http://127.0.0.1:1"))
    tools = approved(store, servers, "putPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(ServerError, match="can't be reached"):
            await session.acall(tools["putPet"], id="7", body={"name": "a"})
        assert session.halted is None


@pytest.mark.parametrize(
    ("headers", "raw", "text"),
    [
        ({"Content-Type": "image/png"}, b"\x89PNG", "4 bytes of image/png"),
        ({"Content-Type": "text/plain; charset=latin-1"}, b"\xe4", "ä"),
        ({"Content-Type": "text/plain; charset=zip"}, b"\xff", "�"),
        ({"Content-Type": "application/json"}, b'{"a": NaN}', '{"a": NaN}'),
        ({"Content-Type": "application/json"}, b"[" * 100_000, "["),
        ({"Content-Type": "text/plain"}, b"x" * (17 << 20), "more than 16 MiB"),
    ],
)
async def test_any_answer_is_kept_or_said(
    headers: Any, raw: bytes, text: str, store: Path, files: Files, pets: Pets
) -> None:
    tools = approved(store, files(), "getPet")
    pets.answers["/v1/pets"] = (200, headers, raw)
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        found = await session.acall(tools["getPet"], id="7")
    assert text in found["result"]["content"][0]["text"]


PACK = """
[tools.getPet]
effect = "read"

[tools.putPet]
effect = "write"
observe.pet = { tool = "getPet", args = { id = "{args.id}" }, take = "structured.body" }
undo = [{ tool = "putPet", args = { id = "{args.id}", body = "{before.pet}" } }]
"""


def test_a_pack_makes_an_operation_undoable(
    store: Path, files: Files, pets: Pets, tmp_path: Path
) -> None:
    (tmp_path / "pack.toml").write_text(PACK)
    servers = files(more='pack = "pack.toml"\n')
    tools = approved(store, servers, "putPet", "getPet")

    async def work() -> str:
        async with Session("a", store=store, gate=[Facade("agent")]) as session:
            await session.acall(tools["putPet"], id="7", body={"name": "b"})
            return session.run_id

    run = asyncio.run(work())
    assert [method for method, _ in asked(pets)] == ["GET", "PUT", "GET"]
    pets.asked.clear()
    command = ["undo", run, "--yes", "--tools", str(servers), "--store", str(store)]
    done = subprocess.run(
        [sys.executable, "-m", "rollcage", *command], capture_output=True, text=True, check=False
    )
    assert "PUT" in [method for method, _ in asked(pets)], done.stdout + done.stderr
    assert json.loads(pets.pet) == {"id": 7, "name": "Rex"}
    assert "1 effects undone" in done.stdout


def test_the_command_line(cli: Cli, store: Path, files: Files, pets: Pets, tmp_path: Path) -> None:
    files()
    refused = cli("mcp", "tools", "--tools", "servers.toml")
    assert refused.code == 2
    assert "--facade" in refused.err
    assert cli("tools", "propose", "servers.toml", "--by", "ann").code == 0
    shown = cli("tools", "review", "dropPet")
    assert "DELETE" in shown.out
    assert '"effect"' not in shown.out or "write" in shown.out
    with pytest.raises(ServersInvalid, match="served by rollcage mcp tools"):
        load_servers("servers.toml")["pets"].check()


def test_what_stands_beside_openapi(files: Files, tmp_path: Path) -> None:
    for more, said in (
        ('command = ["x"]\n', "url, operations, secrets and pack"),
        ("trust_annotations = true\n", "url, operations, secrets and pack"),
        ('operations = ["nope"]\n', "no such operation"),
        ('operations = ["addPhoto"]\n', "image/png"),
    ):
        with pytest.raises(Exception, match=said):
            tools_of(files(more=more))
    assert [each.__name__ for each in tools_of(files(more='operations = ["getPet"]\n'))] == [
        "getPet"
    ]
    servers = files()
    servers.write_text('[servers.a]\ncommand = ["x"]\nsecrets = { a = "B" }\n')
    with pytest.raises(Exception, match="say openapi"):
        load_servers(servers)


@pytest.mark.parametrize(
    "url",
    ["http://pets.example.org", "ftp://x", "https://", "https://a:b@x", "https://x/?a=1", "//x",
     "https://x/{v}", "https://x:99999", "https://x\n"],
)  # fmt: skip
def test_urls_that_are_refused(url: str, files: Files) -> None:
    document = copy.deepcopy(PETS)
    document["servers"] = [{"url": url}]
    servers = files(document)
    servers.write_text('[servers.pets]\nopenapi = "pets.yaml"\n')
    with pytest.raises(OpenAPIInvalid):
        tools_of(servers)


async def test_a_changed_pack_is_not_what_was_approved(
    store: Path, files: Files, pets: Pets, tmp_path: Path
) -> None:
    pack = tmp_path / "pack.toml"
    pack.write_text(PACK)
    servers = files(more='pack = "pack.toml"\n')
    approved(store, servers, "putPet", "getPet")
    pack.write_text(PACK.replace('body = "{before.pet}"', 'body = { name = "gone" }'))
    tools = {each.__name__: each for each in tools_of(servers)}
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(Blocked) as refused:
            await session.acall(tools["putPet"], id="7", body={"name": "b"})
        assert refused.value.verdict_code == "tool_changed"
        await session.acall(tools["getPet"], id="7")
    assert asked(pets) == [("GET", "/v1/pets/7")]


async def test_a_transaction_takes_an_operation_back(
    store: Path, files: Files, pets: Pets, tmp_path: Path
) -> None:
    (tmp_path / "pack.toml").write_text(PACK)
    tools = approved(store, files(more='pack = "pack.toml"\n'), "putPet", "getPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        with pytest.raises(LookupError):
            async with session.transaction():
                await session.acall(tools["putPet"], id="7", body={"name": "b"})
                raise LookupError
    assert json.loads(pets.pet) == {"id": 7, "name": "Rex"}


async def test_what_was_frozen_since_still_undoes(
    store: Path, files: Files, pets: Pets, tmp_path: Path
) -> None:
    (tmp_path / "pack.toml").write_text(PACK)
    tools = approved(store, files(more='pack = "pack.toml"\n'), "putPet", "getPet")
    async with Session("a", store=store, gate=[Facade("agent")]) as session:
        await session.acall(tools["putPet"], id="7", body={"name": "b"})
    Registry(store).freeze("putPet", by="bob")
    report = await aundo_run(store, session.run_id, tools=list(tools.values()))
    assert report.complete
    assert json.loads(pets.pet) == {"id": 7, "name": "Rex"}
