"""Each kind of damage, in each kind of store: it is told, and its command mends it as it stands."""

import contextlib
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import pytest
from command_line import Cli
from postgres import new_store, server
from rollcage import Session, open_store, tool
from rollcage_governance import Registry

pytestmark = pytest.mark.damaged

PLACES: Final = {
    name: f"(SELECT place FROM runs WHERE name = '{name}')"  # noqa: S608 - our own names
    for name in ("job", "open")
}


@tool(effect="write", name="harmed.keep")
def keep(text: str) -> str:
    return text * 100_000 if text == "aaalarge" else text


class Kind(NamedTuple):
    """A kind of damage to a database.

    Attributes:
        statement: what does it; `{bad}` is bytes that are none of ours, `{empty}` an empty JSON
            object, `{job}` a run's place.
        code: what it is told as.
        mends: whether there is a command that mends it, once `BACKUP` is named.
    """

    statement: str
    code: str
    mends: bool = False


KINDS: Final = {
    "a line changed": Kind(
        "UPDATE lines SET line = {bad} WHERE number = 2 AND place = {job}", "trace_corrupt"
    ),
    "a line is gone": Kind("DELETE FROM lines WHERE number = 2 AND place = {job}", "trace_corrupt"),
    "the last lines are gone": Kind(
        "DELETE FROM lines WHERE number > 2 AND place = {job}", "trace_corrupt"
    ),
    "all lines are gone": Kind("DELETE FROM lines WHERE place = {open}", "trace_corrupt"),
    "another end is attested": Kind(
        "UPDATE runs SET count = count + 1 WHERE name = 'job'", "trace_corrupt"
    ),
    "a run is not listed": Kind("DELETE FROM runs WHERE name = 'job'", "index_lost", mends=True),
    "another status": Kind(
        "UPDATE runs SET status = 'error' WHERE name = 'job'", "index_outdated", mends=True
    ),
    "another name": Kind(
        "UPDATE runs SET name = 'joe' WHERE name = 'job'", "index_outdated", mends=True
    ),
    "another input": Kind(
        "UPDATE runs SET input = NULL WHERE name = 'job'", "index_outdated", mends=True
    ),
    "a value changed": Kind("UPDATE blobs SET data = {bad}", "blob", mends=True),
    "a value is gone": Kind("DELETE FROM blobs", "blob", mends=True),
    "the key is cut": Kind("UPDATE kept SET value = {bad} WHERE name = 'key'", "unreadable"),
    "the key is gone": Kind("DELETE FROM kept WHERE name = 'key'", "unreadable"),
    "a decision changed": Kind("UPDATE logs SET line = {bad} WHERE number = 2", "registry_corrupt"),
    "a decision is gone": Kind("DELETE FROM logs WHERE number = 2", "registry_corrupt"),
    "an approval changed": Kind(
        "UPDATE documents SET data = {bad} WHERE kind = 'approvals'", "document"
    ),
    "a stub changed": Kind(
        "UPDATE documents SET data = {bad} WHERE kind = 'pruned'", "stub_damaged", mends=True
    ),
    "a stub of another form": Kind(
        "UPDATE documents SET data = {empty} WHERE kind = 'pruned'", "stub_damaged", mends=True
    ),
}


def fill(where: str) -> None:
    """Runs of all kinds, and what lies beside them."""
    with Session("job", store=where, input=1):
        keep("a")
        keep("b")
    with Session("values", store=where):
        keep("aaalarge")
    with contextlib.suppress(KeyError), Session("open", store=where):
        keep("c")
        raise KeyError
    with Session("gone", store=where) as gone:
        keep("d")
    own = open_store(where)
    own.prune(gone.run_id, by="ann", time=5)
    own.put_once("approvals", "one.request", b"{}")
    registry = Registry(where)
    registry.propose(keep, by="ann")
    registry.approve("harmed.keep", by="bob")


@pytest.fixture(params=["sqlite", "postgres"])
def harmed(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[str], None]]]:
    """The URL of a store, and what does a statement in its database."""
    if request.param == "sqlite":

        def in_sqlite(statement: str) -> None:
            with contextlib.closing(sqlite3.connect("harmed.db")) as db, db:
                db.execute(statement.format(bad="x'64616d61676564'", empty="x'7b7d'", **PLACES))

        yield "sqlite:///harmed.db", in_sqlite
        return
    with new_store() as url:

        def in_postgres(statement: str) -> None:
            with psycopg.connect(server(), autocommit=True) as db:
                db.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())
                harms = {"bad": "'damaged'::bytea", "empty": "'{}'::bytea"}
                db.execute(statement.format(**harms, **PLACES).encode())

        yield url, in_postgres


@pytest.mark.parametrize("what", KINDS)
def test_each_kind_of_damage_to_a_database(
    cli: Cli, harmed: tuple[str, Callable[[str], None]], what: str
) -> None:
    (url, harm), kind = harmed, KINDS[what]
    found_and_mended(cli, url, lambda: harm(kind.statement), kind.code, mends=kind.mends)


def found_and_mended(
    cli: Cli, url: str, harm: Callable[[], None], code: str, *, mends: bool
) -> None:
    """Harm a store, and do what is said to mend it."""
    fill(url)
    assert cli("doctor", "--store", url).code == 0
    assert cli("copy", "--from", url, "--to", "backup").code == 0
    before = {info.run: (info.name, info.status, info.input) for info in open_store(url).runs()}
    harm()
    told = cli("doctor", "--store", url, "--json")
    assert told.code in (1, 3), told.out
    found = [each for each in told.data["findings"] if each["code"] == code]
    assert found, told.out
    for each in found:
        assert bool(each["helps"]) == mends, each
    if not mends:
        assert "no command of Rollcage mends this" in cli("doctor", "--store", url).out
        return
    words = shlex.split(found[0]["helps"].replace("BACKUP", "backup"))
    assert cli(*words[1:]).code == 0
    assert cli("doctor", "--store", url).code == 0, cli("doctor", "--store", url).out
    after = {info.run: (info.name, info.status, info.input) for info in open_store(url).runs()}
    assert after == before
    with Session("job", store=url, input=1, replay="continue") as again:
        assert [keep("a"), keep("b")] == ["a", "b"]
    assert again.stats.hits == 2


FILES: Final[dict[str, tuple[str, bytes | slice | None, str, bool]]] = {
    "a line changed": ("runs/{job}.jsonl", b"harmed.keep", "trace_corrupt", False),
    "the last lines are gone": ("runs/{job}.jsonl", slice(0, -300), "trace_corrupt", False),
    "a trace is gone": ("runs/{job}.jsonl", None, "trace_missing", True),
    "a line of the index changed": ("index.jsonl", b'"name":"job"', "index_damaged", True),
    "the index is cut": ("index.jsonl", slice(0, 100), "index_lost", True),
    "the index is gone": ("index.jsonl", None, "index_lost", True),
    "a value changed": ("blobs/*/*", b"aaa", "blob", True),
    "a value is gone": ("blobs/*/*", None, "blob", True),
    "the key is cut": ("key", slice(0, 10), "unreadable", False),
    "the key is gone": ("key", None, "unreadable", False),
    "a decision changed": ("registry.jsonl", b"bob", "registry_corrupt", False),
    "a decision is gone": ("registry.jsonl", slice(0, -100), "registry_corrupt", False),
    "an approval changed": ("approvals/*", b"{", "document", False),
    "a stub changed": ("pruned/*", b"{", "stub_damaged", True),
}


@pytest.mark.parametrize("what", FILES)
def test_each_kind_of_damage_to_a_folder(cli: Cli, store: Path, what: str) -> None:
    name, change, code, mends = FILES[what]

    def harm() -> None:
        (job,) = (info.run for info in open_store(str(store)).runs(name="job"))
        path = next(store.glob(name.format(job=job)))
        data = path.read_bytes()
        path.unlink()
        if isinstance(change, slice):
            path.write_bytes(data[change])
        elif change is not None:
            assert change in data
            path.write_bytes(data.replace(change, b"~" * len(change)))
        if change is not None:
            path.chmod(0o600)

    found_and_mended(cli, ".rollcage", harm, code, mends=mends)
