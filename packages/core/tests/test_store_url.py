"""Which store a folder's name or a URL means; a URL that nobody knows never becomes a folder."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from rollcage import StoreError, StoreInvalid, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, store_option
from rollcage.store.sqlite import SqliteStore
from rollcage.store.url import open_store


@pytest.mark.parametrize(
    ("where", "kind", "url"),
    [
        ("runs", JsonlStore, "runs"),
        ("./a b", JsonlStore, "a b"),
        (Path("sqlite:") / "x.db", JsonlStore, "./sqlite:/x.db"),
        ("file:runs", JsonlStore, "runs"),
        ("file:///srv/a%20b", JsonlStore, "/srv/a b"),
        ("file://localhost/srv", JsonlStore, "/srv"),
        ("sqlite:///runs.db", SqliteStore, "sqlite:///runs.db"),
        ("sqlite:////srv/a%20b.db", SqliteStore, "sqlite:////srv/a%20b.db"),
        ("SQLITE:///runs.db", SqliteStore, "sqlite:///runs.db"),
        ("sqlite:////srv/50%25%3F.db", SqliteStore, "sqlite:////srv/50%25%3F.db"),
    ],
)
def test_what_a_name_means(where: Any, kind: type, url: str) -> None:
    store = open_store(where)
    assert type(store) is kind
    assert store.url == url
    assert open_store(store) is store
    if not isinstance(where, Path):
        assert open_store(store.url).url == url


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("redis://localhost", "no store is known for redis:// (there is file, postgresql, sqlite)"),
        (
            "sqlite:runs.db",
            "is not the URL of a store (sqlite://…); a folder is written ./sqlite:runs",
        ),
        ("sqlite://runs.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///a?mode=ro", "a `?` or `#` in a path is written %3F or %23"),
        ("file://elsewhere/a", "names a host, 'elsewhere'"),
        ("", "not an empty text"),
        (None, "a store is a folder, a URL or a Store, not None"),
    ],
)
def test_what_means_nothing_is_refused_and_nothing_is_made(
    where: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as error:
        open_store(where)
    assert said in str(error.value)
    with pytest.raises(StoreError):
        Session("job", store=where)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_may_be_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd:name").mkdir()
    assert open_store(open_store("odd:name").url).url == "./odd:name"


def test_a_package_brings_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str, name: str = "") -> list[EntryPoint]:
        entry = EntryPoint("mine", f"{__name__}:opened", group)
        return [entry] if group == "rollcage.stores" and name in ("", "mine") else []

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    monkeypatch.setattr(EntryPoint, "load", lambda _: lambda url: JsonlStore(tmp_path / url[7:]))
    assert open_store("mine://runs").url == str(tmp_path / "runs")
    with pytest.raises(StoreError, match=r"there is file, mine, postgresql, sqlite"):
        open_store("other://runs")


PACKAGE = """
from pathlib import Path
from rollcage.store import JsonlStore

def opened(url):
    return JsonlStore(Path(url.removeprefix("mine://")))

def wrong(url):
    return url
"""
USED = """
import sys
from rollcage import StoreInvalid, tool
from rollcage.session.session import Session
from rollcage.store.url import open_store

@tool(effect="write", name="brought.note")
def note() -> str:
    return "done"

with Session("job", store=sys.argv[1]) as session:
    note()
print(type(open_store(sys.argv[1])).__name__, len(open_store(sys.argv[1]).runs()))
for scheme in ("wrong", "gone"):
    try:
        open_store(f"{scheme}://a")
    except StoreInvalid as error:
        print(error)
"""


def test_an_installed_package_brings_a_store(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "my_store-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_store.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-store\nVersion: 1.0\n")
    points = "mine = my_store:opened\nwrong = my_store:wrong\ngone = my_store_of_old:opened\n"
    (info / "entry_points.txt").write_text(f"[rollcage.stores]\n{points}")
    done = subprocess.run(
        [sys.executable, "-c", USED, f"mine://{tmp_path}/kept"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    used, wrong, gone = done.stdout.splitlines()
    assert used == "JsonlStore 1"
    assert "my-store (my_store:wrong), whose 'wrong://a' is not a Store" in wrong
    assert "my-store (my_store_of_old:opened), which can't be loaded: No module" in gone


@pytest.mark.parametrize("as_url", [False, True])
def test_a_file_is_no_folder_of_runs(tmp_path: Path, *, as_url: bool) -> None:
    text, database = tmp_path / "notes.txt", tmp_path / "runs.db"
    text.write_text("hello")
    with Session("job", store=f"sqlite:///{database}"):
        pass
    scheme = "file://" if as_url else ""
    with pytest.raises(StoreInvalid, match=r"notes.txt' is a file, and a store is a folder$"):
        open_store(f"{scheme}{text}")
    with pytest.raises(StoreInvalid, match=f"is written sqlite:///{database}"):
        open_store(f"{scheme}{database}")
    with pytest.raises(StoreInvalid, match="SQLITE_NOTADB"):
        open_store(f"sqlite:///{text}").runs()


def test_commands_that_are_printed_say_which_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_STORE", raising=False)
    assert store_option(open_store(".rollcage")) == ""
    assert store_option(open_store(tmp_path / ".rollcage")) == ""
    assert store_option(open_store("a b")) == " --store 'a b'"
    assert store_option(open_store("sqlite:///runs.db")) == " --store sqlite:///runs.db"
    monkeypatch.setenv("ROLLCAGE_STORE", "sqlite:///runs.db")
    assert store_option(open_store("sqlite:///runs.db")) == ""
    assert store_option(open_store(".rollcage")) == " --store .rollcage"


def test_a_session_takes_a_url(tmp_path: Path) -> None:
    @tool(effect="write", name="url.note")
    def note() -> str:
        return "done"

    with Session("job", store=f"sqlite:///{tmp_path}/runs.db") as session:
        note()
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []
    assert open_store(session.store.url).runs()[0].run == session.run_id
