"""The registry of tools: its transitions, who may make them, and that nobody can rewrite them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Contract,
    FacadeMissing,
    GovernanceError,
    RegistryCorrupt,
    Store,
    StoreError,
    open_store,
    tool,
)
from rollcage.trace.chain import chained
from rollcage.trace.store import drop
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
def registry(store: Store) -> Registry:
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
    (
        lambda r: r.propose(SEND, by="ann"),
        "is approved already, and has not changed: there is nothing to propose",
    ),
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


def test_a_contract_that_can_not_be_described(store: Store, registry: Registry) -> None:
    odd = Contract(name="odd", parameters={"type": "object", "x-odd": object()})
    with pytest.raises(GovernanceError, match="odd can't be described"):
        registry.propose(odd, by="ann")
    assert store.keys("registry") == []


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


# --- what the store keeps ------------------------------------------------------------------------


class Kept:
    """The two values of a registry in its store, as somebody may change them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, key: str) -> bytes:
        return self.store.get("registry", key) or b""

    def put(self, key: str, data: bytes | None) -> None:
        assert self.store.swap("registry", key, self.store.get("registry", key), data)


@pytest.fixture
def kept(store: Store, registry: Registry) -> Kept:
    """What is kept of a registry with four lines."""
    approved(registry).activate("send", "mail", by="bob")
    return Kept(store)


def test_a_registry_that_was_never_written_is_empty(store: Store, registry: Registry) -> None:
    assert registry.history() == []
    assert registry.state().tools == {}
    with pytest.raises(FacadeMissing, match="there are: none"):
        registry.facade("agent")
    assert store.keys("registry") == []


def test_each_kind_of_store_keeps_a_registry(url: str) -> None:
    registry = approved(Registry(url)).activate("send", "mail", by="bob")
    assert registry.status == "active"
    again = Registry(url)
    assert [line["event"] for line in again.history()] == [
        "tool.proposed",
        "tool.approved",
        "tool.activated",
    ]
    assert again.define_facade("agent", ["mail"], by="bob").check(SEND) is None
    assert open_store(url).keys("registry") == ["end", "lines"]


def edited(data: bytes) -> bytes:
    return data.replace(b'"by":"bob"', b'"by":"eve"', 1)


def swapped(data: bytes) -> bytes:
    one, two, *rest = data.splitlines(keepends=True)
    return b"".join([two, one, *rest])


DAMAGED: list[tuple[Callable[[bytes], bytes], int, str]] = [
    (edited, 3, "its hash differs"),
    (swapped, 1, "its hash differs"),
    (lambda data: data.split(b"\n", 1)[1], 1, "its hash differs"),
    (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), 4, "there were 4 lines, 3 are"),
    (lambda data: data[:-2], 4, "not JSON"),
    (lambda data: data[:-1], 4, "its hash differs"),
    (lambda _: b"", 1, "there were 4 lines, 0 are left"),
    (lambda data: data.replace(b"\n", b"\r\n"), 1, "its hash differs"),
    (lambda data: data + b"\n", 5, "not JSON"),
    (lambda data: data + b'{"event":"tool.frozen"}\n', 5, "its hash differs"),
    (lambda _: b"nonsense\n", 1, "not JSON"),
    (lambda _: b"[1]\n", 1, "not a JSON object"),
]


@pytest.mark.parametrize(("damage", "line", "said"), DAMAGED)
def test_a_damaged_registry_is_an_error_that_names_the_line(
    registry: Registry, kept: Kept, damage: Callable[[bytes], bytes], line: int, said: str
) -> None:
    kept.put("lines", damage(kept.get("lines")))
    for use in (
        registry.state,
        registry.history,
        lambda: registry.facade("agent"),
        lambda: registry.propose(LOOK, by="ann"),
    ):
        with pytest.raises(RegistryCorrupt, match=said) as caught:
            use()
        assert caught.value.line == line
        assert f"{registry.where}, line {line}" in str(caught.value)


def test_a_registry_that_is_gone_is_not_an_empty_one(registry: Registry, kept: Kept) -> None:
    assert drop(kept.store, "registry", "lines")
    with pytest.raises(RegistryCorrupt, match="there were 4 lines, 0 are left"):
        registry.state()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"lines": 1}', '{"lines": -1, "hash": ""}', "nonsense"]
)
def test_a_damaged_note_of_the_end_is_an_error(registry: Registry, kept: Kept, text: str) -> None:
    kept.put("end", text.encode())
    for use in (registry.state, lambda: registry.freeze("send", by="eve")):
        with pytest.raises(RegistryCorrupt, match="the note of where it ends is damaged"):
            use()


def test_another_last_line_than_the_one_that_is_noted(registry: Registry, kept: Kept) -> None:
    kept.put("end", orjson.dumps({"lines": 4, "hash": "0" * 64}))
    with pytest.raises(RegistryCorrupt, match=r"line 4: its hash is not 000000000000"):
        registry.state()


def test_who_is_killed_before_the_end_is_noted_has_written(registry: Registry, kept: Kept) -> None:
    before = kept.get("end")
    registry.freeze("send", by="eve")
    kept.put("end", before)
    assert registry.tool("send").status == "frozen"
    registry.unfreeze("send", by="eve")
    assert orjson.loads(kept.get("end"))["lines"] == 6


@pytest.mark.parametrize(
    ("index", "changes", "line", "said"),
    [
        (2, {"by": "ann"}, 3, "a line that could not have been written: ann proposed 'send'"),
        (2, {"digest": "0" * 64}, 3, "could not have been written"),
        (1, {"digest": "0" * 64}, 2, "is not the digest of the proposal"),
        (1, {"tool": "look"}, 2, "is not the digest of the proposal"),
        (3, {"pack": ""}, 4, "pack: String should have at least 1"),
        (3, {"event": "tool.frozen"}, 4, "pack: Extra inputs"),
        (3, {"event": "tool.cooked"}, 4, "does not match any of the expected tags"),
        (3, {"more": 1}, 4, "Extra inputs"),
        (0, {"format": "rollcage-registry/2"}, 1, "format"),
        (0, {"event": "run.started"}, 1, "it begins with another event"),
    ],
)
def test_no_line_is_taken_that_could_not_have_been_written(
    registry: Registry, kept: Kept, index: int, changes: dict[str, Any], line: int, said: str
) -> None:
    """Also where somebody who may write to the store has chained all lines anew."""
    events = [orjson.loads(each) for each in kept.get("lines").splitlines()]
    for event in events:
        del event["hash"]
    events[index] |= changes
    lines = chained(events)
    kept.put("lines", b"".join(lines))
    last = orjson.loads(lines[-1])["hash"]
    kept.put("end", orjson.dumps({"lines": len(lines), "hash": last}))
    with pytest.raises(RegistryCorrupt, match=said) as caught:
        registry.state()
    assert caught.value.line == line


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Registry(tmp_path / "file").propose(SEND, by="ann")


def test_a_write_that_fails_leaves_everything_as_it_was(
    registry: Registry, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = kept.get("lines"), os.write

    def full(descriptor: int, data: bytes) -> int:
        if b"tool.frozen" in bytes(data):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    if kept.store.url.startswith(("sqlite", "postgres")):
        pytest.skip("it has a folder's writes fail")
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space left"):
        patch.setattr(os, "write", full)
        registry.freeze("send", by="eve")
    assert kept.get("lines") == before
    assert registry.freeze("send", by="eve").status == "frozen"


class Noting:
    """A store in which the end of a registry can't be noted."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if key == "end":
            raise StoreError("the disk is full")
        return self.store.swap(kind, key, was, new)


def test_an_end_that_can_not_be_noted_is_reported(
    registry: Registry, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    noting: Any = Noting(kept.store)
    assert Registry(noting).freeze("send", by="eve").status == "frozen"
    assert "is not noted: the disk is full" in caplog.text
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


def test_several_processes_write_at_once(store: Store, registry: Registry) -> None:
    """Each line is there once, in one chain, and of equal proposals one process's counts."""
    names = ["ann", "bob", "cat", "dan"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, store.url, name],
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

call, number = sys.argv[2], int(sys.argv[3])
plain = getattr(os, call)

def cut(*args, **how):
    global number
    number -= 1
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*args, **how)

registry = Registry(sys.argv[1])
setattr(os, call, cut)
registry.propose(Contract(name="late", parameters={}), by="ann")
"""


@pytest.mark.parametrize("call", ["open", "write", "replace"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_writer_that_is_killed(
    store: Store, registry: Registry, kept: Kept, call: str, number: int
) -> None:
    """Its transition counts entirely or not at all, and nobody has to wait for it."""
    if store.url.startswith(("sqlite", "postgres")):
        pytest.skip("it is killed at a folder's calls")
    lines = len(registry.history())
    killing = [sys.executable, "-c", KILLED, store.url, call, str(number)]
    assert subprocess.run(killing, check=False).returncode == -9
    assert registry.tool("send").status == "active"
    assert len(registry.history()) in (lines, lines + 1)
    late = ("tool", "late") in registry.state().tools
    assert late is (len(registry.history()) == lines + 1)
    registry.propose(LOOK, by="ann")
    assert ("tool", "look") in registry.state().tools
    assert (("tool", "late") in registry.state().tools) is late
