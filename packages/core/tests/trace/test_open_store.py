"""Which store a folder or URL means."""

import sys
from pathlib import Path
from typing import Any

import pytest
from rollcage.errors import StoreInvalid
from rollcage.trace.folder import Folder
from rollcage.trace.store import Store, open_store, store_option


def root(store: Store) -> str:
    assert isinstance(store, Folder)
    return store.root


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert root(open_store("a")) == f"{tmp_path}/a"
    assert root(open_store("./a:b")) == f"{tmp_path}/a:b"
    assert root(open_store(Path("file:x"))) == f"{tmp_path}/file:x"
    assert root(open_store(f"file://{tmp_path}/a%20b")) == f"{tmp_path}/a b"
    assert root(open_store(f"FILE://localhost{tmp_path}/a")) == f"{tmp_path}/a"
    assert root(open_store("file:a")) == f"{tmp_path}/a"
    (tmp_path / "c:d").mkdir()
    assert root(open_store("c:d")) == f"{tmp_path}/c:d"
    assert list(tmp_path.iterdir()) == [tmp_path / "c:d"]


def test_how_durable_it_is(tmp_path: Path) -> None:
    for query, durability in (("", "os"), ("?durability=os", "os"), ("?durability=disk", "disk")):
        store = open_store(f"file://{tmp_path}{query}")
        assert isinstance(store, Folder)
        assert store.durability == durability


def test_a_store_is_given_back() -> None:
    store = Folder("a")
    assert open_store(store) is store


@pytest.mark.parametrize(
    "where",
    [
        "", "\0", "a\0b", "file:", "file://", "file://host/a", "file:///a?b=c", "file:///a#b",
        "file:///a%00b", "file:///a?durability=tape", 7, None, b"a",
    ],
)  # fmt: skip
def test_what_is_no_store_is_refused(where: Any) -> None:
    with pytest.raises(StoreInvalid):
        open_store(where)


@pytest.mark.parametrize("url", ["redis://host/1", "htp://x", "S3://bucket", "mysql+x://a"])
def test_an_unknown_scheme_is_named_and_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreInvalid, match=url.partition(":")[0].lower().replace("+", r"\+")):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_package_brings_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought.py").write_text(
        "from rollcage.trace.folder import Folder\n"
        "def opens(url): return Folder(url.partition('://')[2])\n"
        "def opens_nothing(url): return 7\n"
    )
    info = tmp_path / "brought-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[rollcage.logs]\nmine = brought:opens\nbad = brought:opens_nothing\nno = brought:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert root(open_store("mine:///srv/a")) == "/srv/a"
    with monkeypatch.context() as searched:  # once: the search reads many files
        searched.setattr("importlib.metadata.entry_points", lambda **_: [])
        assert root(open_store("mine:///srv/b")) == "/srv/b"
    with pytest.raises(StoreInvalid, match=r"brought \(brought:opens_nothing\).*not a Store"):
        open_store("bad://a")
    with pytest.raises(StoreInvalid, match=r"brought \(brought:x\), which can't be loaded"):
        open_store("no://a")
    with pytest.raises(StoreInvalid, match="there is bad, file, mine, no"):
        open_store("other://a")
    sys.modules.pop("brought", None)


def test_a_store_that_is_not_installed_says_how_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    monkeypatch.setattr("rollcage.trace.store._openers", {})  # that were found before
    for url in ("sqlite:///a.db", "postgresql://host/a", "postgres://host/a"):
        with pytest.raises(StoreInvalid, match=r"rollcage\[stores\]"):
            open_store(url)


def test_a_command_line_finds_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_STORE", raising=False)
    assert store_option(open_store(".rollcage")) == ""
    assert store_option(open_store(tmp_path / "my runs")) == f" --store '{tmp_path}/my runs'"
    monkeypatch.setenv("ROLLCAGE_STORE", "my runs")
    assert store_option(open_store(tmp_path / "my runs")) == ""
    assert store_option(open_store(".rollcage")) == f" --store {tmp_path}/.rollcage"
    monkeypatch.setenv("ROLLCAGE_STORE", "nonsense://x")
    assert store_option(open_store(".rollcage")) == f" --store {tmp_path}/.rollcage"
