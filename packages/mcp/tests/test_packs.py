"""Packs: what is wrong with one is said at once; what one says undoes a conversation's writes."""

import asyncio
import textwrap
from typing import Any

import pytest
from rollcage import UnknownOutcome
from rollcage_mcp.conversation import ServerDeclarations
from rollcage_mcp.errors import PackInvalid, ServerError
from rollcage_mcp.pack import BUILT_IN, Pack
from rollcage_mcp.templates import Missing, filled, names_in
from scripted import Server, Talk

PACK = """
[tools.get]
effect = "read"

[tools.put]
effect = "write"
observe.value = { tool = "get", args = { key = "{args.key}" }, take = "text", pick = "^is (.*)$" }
undo = [
    { if = "{before.value}", tool = "put", args.key = "{args.key}", args.value = "{before.value}" },
    { unless = "{before.value}", tool = "drop", args = { key = "{args.key}" } },
]
probe = { tool = "get", args = { key = "{args.key}" }, take = "text", pick = "^is (.*)$" }

[tools.drop]
effect = "write"
"""


class Drawer:
    """A server that keeps values by key."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.server = Server(get=self.get, put=self.put, drop=self.drop)
        key: Any = {"key": {"type": "string"}}
        both: Any = {"key": {}, "value": {}}
        for name, properties in (("get", key), ("put", both), ("drop", key)):
            schema = {"type": "object", "properties": properties, "required": [*properties]}
            self.server.said[name] = {"inputSchema": schema}

    async def get(self, server: Server, key: str) -> str:
        return f"is {self.values[key]}" if key in self.values else "nothing"

    async def put(self, server: Server, key: str, value: str) -> str:
        self.values[key] = value
        return "done"

    async def drop(self, server: Server, key: str) -> str:
        self.values.pop(key, None)
        return "done"


async def test_writes_of_a_conversation_are_undone_by_a_pack(talk: Talk, store: Any) -> None:
    drawer = Drawer()
    drawer.values = {"a": "1"}
    declared = ServerDeclarations(Pack.parse(PACK, "drawer.toml"))
    async with talk(drawer.server, declared=declared) as client:
        await client.greet()
        for key, value in (("a", "2"), ("b", "3"), ("a", "4")):
            await client.call("put", key=key, value=value)
        session = client.conversation.session
        report = await session.aundo()
        assert [each.status for each in report.steps] == ["verified"] * 3
    assert drawer.values == {"a": "1"}


async def test_a_conflict_leaves_everything_as_it_is(talk: Talk) -> None:
    drawer = Drawer()
    declared = ServerDeclarations(Pack.parse(PACK, "drawer.toml"))
    async with talk(drawer.server, declared=declared) as client:
        await client.greet()
        await client.call("put", key="a", value="1")
        await client.call("put", key="b", value="2")
        drawer.values["a"] = "somebody else's"
        report = await client.conversation.session.aundo()
        assert {each.status for each in report.steps} >= {"conflict"}
    assert drawer.values == {"a": "somebody else's", "b": "2"}


async def test_a_write_whose_state_cant_be_observed_is_refused(talk: Talk) -> None:
    drawer = Drawer()

    async def fails(server: Server, key: str) -> str:
        raise LookupError("out of order")

    drawer.server.tools["get"] = fails
    async with talk(
        drawer.server, declared=ServerDeclarations(Pack.parse(PACK, "d.toml"))
    ) as client:
        await client.greet()
        answer = await client.call("put", key="a", value="1")
        assert "out of order" in str(answer)
    assert drawer.values == {}


async def test_a_pack_is_held_against_the_servers_schemas(talk: Talk) -> None:
    wrong = textwrap.dedent("""
        [tools.put]
        effect = "write"
        secret = ["password"]
        observe.value = { tool = "gett", args = { key = "{args.kee}" }, take = "text" }
        undo = [{ tool = "drop", args = { kee = "x" } }]

        [tools.nothing]
        effect = "read"
    """)
    drawer = Drawer()
    async with talk(
        drawer.server, declared=ServerDeclarations(Pack.parse(wrong, "w.toml"))
    ) as client:
        await client.greet()
        text = str((await client.call("put", key="a", value="1"))["error"]["message"])
    assert text.splitlines() == [
        "w.toml can't be used:",
        "  tools.put.observe.value: put has no argument 'kee'",
        "  tools.put.secret: put has no argument 'password'",
        "  tools.put.observe.value: the server has no tool 'gett'",
        "  tools.put.undo[0]: drop has no argument 'kee'",
        "  tools.put.undo[0]: drop wants the argument 'key'",
        "  tools.nothing: the server has no such tool",
    ]
    assert drawer.values == {}


@pytest.mark.parametrize(("line", "said"), [
    ('effect = "wirte"', "tools.t.effect"),
    ('effect = "write"\noops = 1', "tools.t.oops: Extra inputs"),
    ('effect = "read"\nundo = [{ tool = "x" }]', "a read changes nothing"),
    ('effect = "write"\nundo = [{ tool = "x", args = { a = "{before.y}" } }]', "was not observed"),
    ('effect = "write"\nundo = [{ tool = "x", args = { a = "{nope.y}" } }]', "names nothing"),
    ('effect = "write"\nobserve.o = { tool = "x", args = { a = "{result.y}" } }', "names nothing"),
    ('effect = "write"\nundo = [{ tool = "x", args = { a = "{x" } }]', "is not a placeholder"),
    ('effect = "write"\nobserve.o = { tool = "x", pick = "(" }', "no regular expression"),
    ('effect = "write"\nobserve.o = { tool = "x", pick = "abc" }', "it picks nothing"),
    ('effect = "write"\nobserve.o = { tool = "x", take = "all" }', "it is text, result"),
    ('effect = "write"\nidempotent = "yes"', "tools.t.idempotent"),
    ("effect", "Expected '='"),
])  # fmt: skip
def test_what_is_wrong_with_a_pack_is_said(line: str, said: str) -> None:
    with pytest.raises(PackInvalid, match=r"pack\.toml") as caught:
        Pack.parse(f"[tools.t]\n{line}\n", "pack.toml")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_packs_that_come_with_the_package_can_be_used(name: str) -> None:
    assert Pack.load(name).names()


def test_a_pack_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(PackInvalid, match="name a file, or one of filesystem, git"):
        Pack.load("filesistem")


VALUES = {"args": {"a": 1, "b": [{"c": "x"}, {"c": "y"}], "t": "u"}, "empty": []}


@pytest.mark.parametrize(("template", "made"), [
    ("{args.a}", 1),
    ("a is {args.a}", "a is 1"),
    ("{args.b[*].c}", ["x", "y"]),
    ("{args.b[1].c}", "y"),
    ("{args.b[*]}", VALUES["args"]["b"]),  # type: ignore[index]
    ("{{args.a}}", "{args.a}"),
    ({"k": ["{args.t}", 2, True, None]}, {"k": ["u", 2, True, None]}),
    ({"for": "{args.b}", "of": "{item.c}!"}, ["x!", "y!"]),
    ({"for": "{args.b}", "where": ["{item.c}"], "in": ["y"], "of": "{item.c}"}, ["y"]),
    ({"for": "{empty}", "of": "{item.c}"}, []),
])  # fmt: skip
def test_templates(template: Any, made: Any) -> None:
    assert filled(template, VALUES) == made


@pytest.mark.parametrize(
    "template",
    ["{args.z}", "x{args.b}", "{args.b[7]}", "{args.b[*].z}", {"for": "{args.a}", "of": "x"}],
)
def test_a_placeholder_without_a_value_is_no_guess(template: Any) -> None:
    with pytest.raises(Missing):
        filled(template, VALUES)


@pytest.mark.parametrize("text", ["{", "}", "{}", "{a b}", "{a.}", "{__import__('os')}", "{a!r}"])
def test_a_text_with_a_lone_brace_is_no_template(text: str) -> None:
    with pytest.raises(ValueError, match="is not a placeholder"):
        list(names_in(text))


def test_an_error_of_a_server_says_its_number() -> None:
    assert str(ServerError(-32602, "no")) == "no (-32602)"


@pytest.mark.parametrize("happens", [True, False])
async def test_a_write_that_was_cut_off_is_probed_when_the_job_goes_on(
    talk: Talk, happens: bool
) -> None:
    """The server is killed in it; then it is done once, and undone with the others."""
    drawer = Drawer()

    async def dies(server: Server, key: str, value: str) -> str:
        if happens:
            drawer.values[key] = value
        server.gone()
        await asyncio.sleep(60)
        return ""

    drawer.server.tools["put"] = dies
    declared = ServerDeclarations(Pack.parse(PACK, "drawer.toml"))
    with pytest.raises(UnknownOutcome):
        async with talk(drawer.server, declared=declared) as client:
            await client.greet()
            await client.call("put", key="a", value="1")
    calls: list[str] = []

    async def counted(server: Server, key: str, value: str) -> str:
        calls.append(key)
        return await drawer.put(server, key, value)

    drawer.server.tools["put"] = counted
    async with talk(drawer.server, declared=declared) as client:
        await client.greet()
        assert await client.text("put", key="a", value="1") == "done"
        assert await client.text("put", key="b", value="2") == "done"
        assert calls == (["b"] if happens else ["a", "b"])
        report = await client.conversation.session.aundo()
        assert [each.status for each in report.steps][:1] == ["verified"]
    assert "b" not in drawer.values


async def test_a_call_of_which_nothing_can_be_seen_is_not_called_undone(talk: Talk) -> None:
    """Its looks need what it does not have; that no state was seen is no proof of anything."""
    drawer = Drawer()

    async def sloppy(server: Server, value: str) -> str:
        drawer.values["default"] = value
        return "done"

    drawer.server.tools["put"] = sloppy
    async with talk(
        drawer.server, declared=ServerDeclarations(Pack.parse(PACK, "d.toml"))
    ) as client:
        await client.greet()
        assert await client.text("put", value="1") == "done"
        report = await client.conversation.session.aundo()
        assert "verified" not in {each.status for each in report.steps}
    assert drawer.values == {"default": "1"}


async def test_what_could_not_be_looked_at_was_not_absent(talk: Talk) -> None:
    """The look gives an error as its result: an undo for what was absent is not made."""
    drawer = Drawer()

    class Failing(Server):
        async def _result(self, message: Any) -> dict[str, Any]:
            result = await super()._result(message)
            if message.params.get("name") == "get" and not drawer.values.get("shown"):
                return {"content": [{"type": "text", "text": "busy"}], "isError": True}
            return result

    drawer.values = {"a": "theirs"}
    server = Failing(**drawer.server.tools)
    server.said = drawer.server.said
    async with talk(server, declared=ServerDeclarations(Pack.parse(PACK, "d.toml"))) as client:
        await client.greet()
        await client.call("put", key="a", value="1")
        drawer.values["shown"] = "1"
        report = await client.conversation.session.aundo()
        assert "verified" not in {each.status for each in report.steps}
    assert "a" in drawer.values
