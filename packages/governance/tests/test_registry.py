"""The registry of tools: its transitions, who may make them, and that nobody can rewrite them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Contract, GovernanceError, RegistryCorrupt, StoreError, tool
from rollcage.errors import FacadeMissing
from rollcage.store import JsonlStore
from rollcage.trace import CHAIN_START, seal_line
from rollcage_governance import Registry


@tool(effect="write", risk="low", permissions=["net:mail"])
def send(to: str, text: str = "") -> str:
    """Send a mail."""
    return f"{to}: {text}"


@tool(effect="read")
def look(at: str) -> str:
    """Look at it."""
    return at


SEND: Contract = vars(send)["__rollcage_contract__"]
PLAIN: Any = vars(send)["__wrapped__"]
LOOK: Contract = vars(look)["__rollcage_contract__"]


@pytest.fixture
def registry(store: JsonlStore) -> Registry:
    """An empty one."""
    return Registry(store)


def approved(registry: Registry, contract: Contract = SEND) -> Registry:
    registry.propose(contract, by="ann", why="we need it")
    registry.approve(contract.name, by="bob", why="looked at it")
    return registry


# --- the way of a tool ---------------------------------------------------------------------------


def test_the_way_of_a_tool(registry: Registry) -> None:
    assert registry.propose(SEND, by="ann").status == "proposed"
    assert registry.approve("send", by="bob").status == "approved"
    assert registry.activate("send", "mail", by="bob").status == "active"
    assert registry.freeze("send", by="eve", why="an incident").status == "frozen"
    assert registry.unfreeze("send", by="bob").status == "active"
    assert registry.deprecate("send", by="bob", why="use post").status == "deprecated"
    governed = registry.tool("send")
    assert governed.pin is not None
    assert (governed.pin.proposed_by, governed.pin.approved_by) == ("ann", "bob")
    assert governed.last_change == ("bob", "use post")
    assert registry.deactivate("send", "mail", by="bob").packs == frozenset()


def test_each_transition_says_who_when_and_why(registry: Registry) -> None:
    approved(registry).propose(LOOK, by="eve", why="to see")
    registry.activate("send", "mail", by="bob", why="ready")
    registry.define_facade("support", ["mail"], by="bob", why="for support")
    said = [(e["event"], e["by"], e["why"]) for e in registry.history()]
    assert said == [
        ("tool.proposed", "ann", "we need it"),
        ("tool.approved", "bob", "looked at it"),
        ("tool.proposed", "eve", "to see"),
        ("tool.activated", "bob", "ready"),
        ("facade.defined", "bob", "for support"),
    ]
    assert all(event["time"] > 0 for event in registry.history())
    assert [e["by"] for e in registry.history("look")] == ["eve"]
    assert [e["packs"] for e in registry.history("support")] == [["mail"]]


# The last two are drawn like it: with Cyrillic letters, and with a Greek one.
@pytest.mark.parametrize("by", ["ann", "Ann", " ANN ", "\uff41nn", "\u0430nn", "\u0391nn"])
def test_who_proposed_a_tool_can_not_approve_it(registry: Registry, by: str) -> None:
    registry.propose(SEND, by="ann")
    with pytest.raises(GovernanceError, match="another person has to approve it"):
        registry.approve("send", by=by)
    assert registry.tool("send").status == "proposed"


def test_a_rejected_proposal_leaves_what_was_approved(registry: Registry) -> None:
    registry.propose(SEND, by="ann")
    assert registry.reject("send", by="bob", why="no").status == "rejected"
    approved(registry)
    other = Contract.of(PLAIN, effect="read")
    assert registry.propose(other, by="ann").status == "approved"
    assert registry.diff("send").startswith("effect: write -> read\n")
    pin = registry.reject("send", by="bob").pin
    assert pin is not None
    assert registry.tool("send").pin == pin
    assert registry.tool("send").proposal is None


def test_a_newer_proposal_takes_the_place_of_an_older_one(registry: Registry) -> None:
    first = registry.propose(SEND, by="ann").proposal
    other = Contract.of(PLAIN, effect="read")
    second = registry.propose(other, by="eve").proposal
    assert first is not None
    assert second is not None
    with pytest.raises(GovernanceError, match="review it again"):
        registry.approve("send", by="bob", digest=first.digest)
    pin = registry.approve("send", by="bob", digest=second.digest).pin
    assert pin is not None
    assert pin.digest == second.digest


def test_what_is_approved_anew_is_no_longer_deprecated(registry: Registry) -> None:
    approved(registry)
    registry.deprecate("send", by="bob")
    assert registry.propose(SEND, by="ann").status == "deprecated"
    assert registry.approve("send", by="bob").status == "approved"


ANYTHING: Any = 1  # what a user may pass all the same

REFUSED: list[tuple[Callable[[Registry], object], str]] = [
    (lambda r: r.approve("send", by="ann"), "nothing is proposed for 'send': it is active"),
    (lambda r: r.reject("send", by="ann"), "nothing is proposed"),
    (lambda r: r.approve("nobody", by="ann"), "no tool called 'nobody' was proposed; there are: "),
    (lambda r: r.freeze("send", by="ann", kind="model"), "no model called 'send'"),
    (lambda r: r.propose(SEND, by="ann"), "is approved as it is now: there is nothing to propose"),
    (lambda r: r.propose(LOOK, by="eve"), "'look' is proposed already, by ann"),
    (lambda r: r.activate("look", "p", by="bob"), "is proposed: it has to be approved first"),
    (lambda r: r.freeze("look", by="bob"), "has to be approved first"),
    (lambda r: r.deprecate("look", by="bob"), "has to be approved first"),
    (lambda r: r.deactivate("send", "p", by="bob"), "is not active in the pack 'p'"),
    (lambda r: r.activate("send", "mail", by="bob"), "is already active in the pack 'mail'"),
    (lambda r: r.unfreeze("send", by="bob"), "is not frozen"),
    (lambda r: (r.freeze("send", by="b"), r.freeze("send", by="b")), "is already frozen"),
    (lambda r: (r.freeze("send", by="b"), r.activate("send", "p", by="b")), "no further pack"),
    (lambda r: (r.deprecate("send", by="b"), r.deprecate("send", by="b")), "is already deprecated"),
    (lambda r: (r.deprecate("send", by="b"), r.activate("send", "p", by="b")), "no further pack"),
    (lambda r: r.define_facade("f", ["x"], by="bob"), "in the pack 'x'; the packs are: mail"),
    (lambda r: r.define_facade("f", [], by="bob"), "needs a list of packs"),
    (lambda r: r.define_facade("f", "mail", by="bob"), "needs a list of packs"),
    (lambda r: r.define_facade("", ["mail"], by="bob"), "facade= is empty"),
    (lambda r: r.define_facade("all", ["mail"], by="bob"), "is already defined like this"),
    (lambda r: r.freeze("send", by=""), "the name is empty"),
    (lambda r: r.freeze("send", by="\ud800"), "can't be seen"),
    (lambda r: r.freeze("send", by="b", why=ANYTHING), "is no text"),
    (lambda r: r.activate("send", " ", by="b"), "pack= is empty"),
    (lambda r: r.tool("nobody"), "no tool called"),
    (lambda r: r.propose(LOOK, by="b", kind=ANYTHING), "kind: Input should be"),
]


@pytest.mark.parametrize(("transition", "said"), REFUSED)
def test_what_is_not_allowed_is_refused_and_nothing_is_written(
    registry: Registry, transition: Callable[[Registry], object], said: str
) -> None:
    approved(registry).activate("send", "mail", by="bob")
    registry.define_facade("all", ["mail"], by="bob")
    registry.propose(LOOK, by="ann")
    with pytest.raises(GovernanceError, match=said.replace("(", r"\(")):
        transition(registry)
    last = registry.history()[-1]
    assert last["event"] in ("tool.proposed", "tool.frozen", "tool.deprecated")


def test_a_contract_that_can_not_be_described(registry: Registry) -> None:
    odd = Contract(name="odd", parameters={"type": "object", "x-odd": object()})
    with pytest.raises(GovernanceError, match="odd can't be described"):
        registry.propose(odd, by="ann")
    assert not Path(registry.where).exists() or registry.history() == []


def test_a_function_is_as_good_as_its_contract(registry: Registry) -> None:
    registry.propose(send, by="ann")
    registry.approve("send", by="bob")
    assert registry.diff("send", send) == registry.diff("send", SEND) == ""
    assert not registry.is_new(send)
    assert registry.is_new(look)
    with pytest.raises(GovernanceError, match=r"is not a tool: declare it with @rollcage.tool"):
        registry.propose(print, by="ann")


def test_what_is_no_store_keeps_no_registry() -> None:
    with pytest.raises(StoreError, match="a store is a folder, a URL or a Store, not "):
        Registry(ANYTHING)


# --- what a digest is of -------------------------------------------------------------------------


def variants() -> dict[str, Contract]:
    """The same tool, changed in one field each."""
    declared: dict[str, Any] = {"effect": "write", "risk": "low", "permissions": ["net:mail"]}

    def other_code(to: str, text: str = "") -> str:
        """Send a mail."""
        return f"{to}: {text}!"

    def other_schema(to: str, text: str = "", copies: int = 0) -> str:
        """Send a mail."""
        return f"{to}: {text}"

    def undo(args: dict[str, Any]) -> None:
        """Take nothing back."""

    return {
        "version": Contract.of(PLAIN, **declared, version="2"),
        "description": Contract.of(PLAIN, **declared, description="Send a mail!"),
        "effect": Contract.of(PLAIN, **{**declared, "effect": "read"}),
        "idempotent": Contract.of(PLAIN, **declared, idempotent=True),
        "risk": Contract.of(PLAIN, **{**declared, "risk": "high"}),
        "permissions": Contract.of(PLAIN, **{**declared, "permissions": ["net:*"]}),
        "labels": Contract.of(PLAIN, **declared, labels=["untrusted"]),
        "secret": Contract.of(PLAIN, **declared, secret="text"),
        "output": Contract.of(PLAIN, **declared, max_output=10),
        "undo": Contract.of(PLAIN, **declared, undo=undo),
        "code": Contract.of(other_code, **declared, name="send"),
        "schema": Contract.of(other_schema, **declared, name="send"),
    }


@pytest.mark.parametrize("field", variants())
def test_each_field_that_changes_shows_in_the_diff(registry: Registry, field: str) -> None:
    approved(registry)
    other = variants()[field]
    differs = registry.diff("send", other)
    fields = [line.split(":")[0] for line in differs.splitlines() if not line.startswith(" ")]
    assert field in fields
    assert set(fields) <= {field, "code", *(["schema"] if field == "secret" else [])}
    assert registry.diff("send", SEND) == ""


def test_a_diff_can_be_read(registry: Registry) -> None:
    approved(registry)
    assert registry.diff("send", variants()["risk"]) == "risk: low -> high"
    assert registry.diff("send", variants()["permissions"]) == (
        'permissions:\n  @@ -1,3 +1,3 @@\n   [\n  -  "net:mail"\n  +  "net:*"\n   ]'
    )
    assert '  -    return f"{to}: {text}"\n' in registry.diff("send", variants()["code"])
    registry.propose(LOOK, by="ann")
    assert "description: null -> Look at it." in registry.diff("look")


def test_large_numbers_and_models_in_a_schema(registry: Registry) -> None:
    """MCP servers write such schemas; JCS alone can't hold them."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**63 - 1}}}
    contract = Contract(name="count", parameters=schema)
    approved(registry, contract)
    assert registry.diff("count", Contract(name="count", parameters=schema)) == ""
    schema["properties"]["n"]["maximum"] = 2**63  # type: ignore[index] # nested
    assert "schema:" in registry.diff("count", Contract(name="count", parameters=schema))


# --- the file ------------------------------------------------------------------------------------


@pytest.fixture
def file(registry: Registry) -> Path:
    """The file of a registry with four lines."""
    approved(registry).activate("send", "mail", by="bob")
    return Path(registry.where)


def test_a_registry_that_was_never_written_is_empty(store: JsonlStore, registry: Registry) -> None:
    assert registry.history() == []
    assert registry.state().tools == {}
    with pytest.raises(FacadeMissing, match="there are: none"):
        registry.facade("agent")
    assert not (store.root / "registry.jsonl").exists()


def edited(data: bytes) -> bytes:
    return data.replace(b'"by":"bob"', b'"by":"eve"', 1)


def swapped(data: bytes) -> bytes:
    one, two, *rest = data.splitlines(keepends=True)
    return b"".join([two, one, *rest])


DAMAGED: list[tuple[Callable[[bytes], bytes], int, str]] = [
    (edited, 3, "its hash does not follow"),
    (swapped, 1, "its hash does not follow"),
    (lambda data: data.split(b"\n", 1)[1], 1, "its hash does not follow"),
    (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), 4, "there were 4 lines, 3 are"),
    (lambda data: data[:-2], 4, "there were 4 lines, 3 are left"),
    (lambda _: b"", 1, "there were 4 lines, 0 are left"),
    (lambda data: data.replace(b"\n", b"\r\n"), 1, "not a line"),
    (lambda _: b"nonsense\n", 1, "not a line"),
]


@pytest.mark.parametrize(("damage", "line", "said"), DAMAGED)
def test_a_damaged_registry_is_an_error_that_names_the_line(
    registry: Registry, file: Path, damage: Callable[[bytes], bytes], line: int, said: str
) -> None:
    file.write_bytes(damage(file.read_bytes()))
    for use in (
        registry.state,
        registry.history,
        lambda: registry.facade("agent"),
        lambda: registry.propose(LOOK, by="ann"),
    ):
        with pytest.raises(RegistryCorrupt, match=said) as caught:
            use()
        assert caught.value.line == line
        assert f"registry.jsonl, line {line}" in str(caught.value)


def test_a_registry_that_is_gone_is_not_an_empty_one(registry: Registry, file: Path) -> None:
    file.unlink()
    with pytest.raises(RegistryCorrupt, match="there were 4 lines, 0 are left"):
        registry.state()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"count": 1}', "nonsense"])
def test_a_damaged_head_is_an_error(registry: Registry, file: Path, text: str) -> None:
    file.with_suffix(".head").write_text(text)
    with pytest.raises(RegistryCorrupt, match=r"registry.head, line 1"):
        registry.state()


def test_another_line_than_the_attested_one(registry: Registry, file: Path) -> None:
    head = file.with_suffix(".head")
    head.write_bytes(orjson.dumps({"count": 4, "head": "0" * 64}))
    with pytest.raises(RegistryCorrupt, match="its hash is not the attested 0000"):
        registry.state()


def test_a_torn_last_line_is_no_line_and_is_set_aside(
    registry: Registry, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writer was killed in the middle of it: nobody was told that it is written."""
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"event":"tool.frozen","ti')
    assert registry.tool("send").status == "active"
    registry.freeze("send", by="eve")
    assert "torn" in caplog.text
    assert registry.tool("send").status == "frozen"
    assert file.with_suffix(".torn").read_bytes() == b'{"event":"tool.frozen","ti\n'
    assert file.read_bytes().startswith(whole)


def test_who_is_killed_before_the_end_is_attested_has_written(
    registry: Registry, file: Path
) -> None:
    head = file.with_suffix(".head")
    before = head.read_bytes()
    registry.freeze("send", by="eve")
    head.write_bytes(before)
    assert registry.tool("send").status == "frozen"
    registry.unfreeze("send", by="eve")
    assert orjson.loads(head.read_bytes())["count"] == 6


def forged(file: Path, *events: dict[str, Any]) -> None:
    """Rewrite a registry, chain and head included, as somebody may who can write its folder."""
    last, lines = CHAIN_START, []
    for event in events:
        line, last = seal_line(event, last)
        lines.append(line)
    file.write_bytes(b"".join(lines))
    head = {"count": len(events), "head": last.hex()}
    file.with_suffix(".head").write_bytes(orjson.dumps(head))


@pytest.mark.parametrize(
    ("index", "changes", "line", "said"),
    [
        (2, {"by": "ann"}, 3, "a line that could not have been written: ann proposed 'send'"),
        (2, {"digest": "0" * 64}, 3, "could not have been written"),
        (1, {"digest": "0" * 64}, 2, "is not that of what is proposed"),
        (1, {"tool": "look"}, 2, "is not that of what is proposed"),
        (3, {"pack": ""}, 4, "pack: String should have at least 1"),
        (3, {"event": "tool.frozen"}, 4, "pack: Extra inputs"),
        (3, {"event": "tool.cooked"}, 4, "does not match any of the expected tags"),
        (3, {"more": 1}, 4, "Extra inputs"),
        (0, {"format": "rollcage-registry/2"}, 1, "format"),
        (0, {"event": "run.started"}, 1, "it begins with another event"),
    ],
)
def test_no_line_is_taken_that_could_not_have_been_written(
    registry: Registry, file: Path, index: int, changes: dict[str, Any], line: int, said: str
) -> None:
    events = [orjson.loads(each) for each in file.read_bytes().splitlines()]
    for event in events:
        del event["hash"]
    events[index] |= changes
    forged(file, *events)
    with pytest.raises(RegistryCorrupt, match=said) as caught:
        registry.state()
    assert caught.value.line == line


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file, and a store is a folder"):
        Registry(tmp_path / "file").propose(SEND, by="ann")
    (tmp_path / "store" / "registry.jsonl").mkdir(parents=True)
    with pytest.raises(StoreError, match="can't be read"):
        Registry(tmp_path / "store").state()


def test_a_write_that_fails_leaves_the_file_as_it_was(
    registry: Registry, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = file.read_bytes(), os.write

    def half(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="a short write"):
        patch.setattr(os, "write", half)
        registry.freeze("send", by="eve")
    assert file.read_bytes() == before
    assert registry.freeze("send", by="eve").status == "frozen"


def test_a_head_that_can_not_be_written_is_reported(
    registry: Registry, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.with_suffix(".head.part").mkdir()
    assert registry.freeze("send", by="eve").status == "frozen"
    assert "is not attested" in caplog.text
    assert registry.tool("send").status == "frozen"


# --- many writers --------------------------------------------------------------------------------

WRITER = """
import sys
from rollcage import Contract, GovernanceError
from rollcage_governance import Registry

store, me = sys.argv[1:]
registry = Registry(store)
won = 0
for number in range(12):
    registry.propose(Contract(name=f"{me}-{number}", parameters={}), by=me)
    try:
        registry.propose(Contract(name=f"shared-{number}", parameters={}), by=me)
        won += 1
    except GovernanceError as refused:
        assert "is proposed already" in str(refused), refused
print(won)
"""


def test_several_processes_write_at_once(store: JsonlStore, registry: Registry) -> None:
    """Each line is there once, in one chain, and of equal proposals one process's counts."""
    names = ["ann", "bob", "cat", "dan"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.root), name],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    won = [int(writer.communicate()[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    assert sum(won) == 12
    state = registry.state()
    assert len(state.tools) == len(registry.history()) == 4 * 12 + 12
    for name in names:
        assert [e["tool"] for e in registry.history() if e["tool"].startswith(name)] == [
            f"{name}-{number}" for number in range(12)
        ]


KILLED = """
import os, signal, sys
from rollcage import Contract
from rollcage_governance import Registry
from rollcage.store import chained

write = os.write

def cut(descriptor, data):
    write(descriptor, data[:40])
    os.kill(os.getpid(), signal.SIGKILL)

registry = Registry(sys.argv[1])
os.write = cut
registry.propose(Contract(name="late", parameters={}), by="ann")
"""


def test_a_writer_that_is_killed_in_the_middle_of_a_line(
    store: JsonlStore, registry: Registry, file: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.root)], check=False)
    assert done.returncode == -9
    assert not file.read_bytes().endswith(b"\n")
    assert registry.tool("send").status == "active"
    registry.propose(LOOK, by="ann")  # its lock ended with it
    assert set(registry.state().tools) == {("tool", "send"), ("tool", "look")}
