"""What is wrong with a store is said, each with the command that mends it; and that does."""

import contextlib
import os
import shlex
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from rollcage import Session, UnknownOutcome, open_store, tool
from rollcage.store import JsonlStore

world: list[str] = []


@tool(effect="write", name="doctor.keep")
def keep(text: str) -> str:
    if text == "unknown":
        raise TimeoutError
    world.append(text)
    return text * 100_000 if text == "large" else text


def work(where: Any, *texts: str, name: str = "job") -> str:
    with contextlib.suppress(KeyError, UnknownOutcome), Session(name, store=where) as session:
        for text in texts:
            if text == "fail":
                raise KeyError
            keep(text)
    return session.run_id


def found(cli: Cli, *, code: int, url: str = ".rollcage") -> dict[tuple[str, str], str]:
    """What is found: the code of each and its run, with the command that helps."""
    result = cli("doctor", "--json", "--store", url)
    assert result.code == code, result.out + result.err
    return {(each["code"], each["run"]): each["helps"] for each in result.data["findings"]}


def mend(cli: Cli, command: str, *more: str) -> None:
    words = shlex.split(command.split("; or, if not: ", maxsplit=1)[0])
    assert words[0] == "rollcage"
    assert cli(*words[1:], *more).code == 0


@pytest.mark.parametrize("url", [".rollcage", "sqlite:///doctor.db"])
def test_a_sound_store(cli: Cli, url: str) -> None:
    work(url, "large")
    work(url, "a", "fail")
    work(url, "a", "b")
    assert found(cli, code=0, url=url) == {}
    assert cli("doctor", "--store", url).out == f"3 runs in {url}: nothing is wrong\n"


@pytest.mark.parametrize("url", [".rollcage", "sqlite:///doctor.db"])
def test_what_somebody_has_to_decide(cli: Cli, url: str) -> None:
    stopped = work(url, "a", "fail", name="stopped")
    cli("stop", stopped, "--by", "ann", "--store", url)
    unknown = work(url, "unknown")
    told = found(cli, code=1, url=url)
    assert told.keys() == {("stop_order", stopped), ("outcome_unknown", unknown)}
    mend(cli, told["stop_order", stopped])
    mend(cli, told["outcome_unknown", unknown])
    assert found(cli, code=0, url=url).keys() <= {("left_over", "")}  # the page of the order
    assert "no session resumes it" not in cli("doctor", "--store", url).out


def test_an_index_that_is_out_of_date_or_damaged(cli: Cli, store: Path) -> None:
    first, second = work(store, "a"), work(store, "b")
    index = store / "index.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(lines[0] + b"nonsense\n" + b"".join(lines[3:]))
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    told = found(cli, code=1)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert told.keys() == {
        ("index_damaged", ""), ("index_lost", second), ("index_outdated", first),
        ("unattested", first),
    }  # fmt: skip
    mend(cli, told["index_damaged", ""])
    assert found(cli, code=0).keys() == {("unattested", first)}


def test_what_killed_processes_left(cli: Cli, store: Path) -> None:
    dead = work(store, "a", "fail")
    page = store / "logs" / f"{dead}.control"
    page.write_bytes(b"\0")
    cut_off = store / "logs" / f"{dead}.jsonl.0123abcd"
    cut_off.write_bytes(b"half a copy")
    with Session("live", store=store) as live:
        used = store / "logs" / f"{live.run_id}.control"
        used.write_bytes(b"\0")  # as an order that was lifted leaves it
        told = found(cli, code=0)
        assert told.keys() == {("left_over", "")}
        assert cli("doctor").out.count("a killed process left") == 2
        mend(cli, told["left_over", ""])
        assert (page.exists(), cut_off.exists(), used.exists()) == (False, False, True)
        keep("b")
    assert found(cli, code=0) == {}


@pytest.mark.damaged
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("url", [".rollcage", "sqlite:///doctor.db"])
def test_a_large_value_comes_back_from_a_backup(cli: Cli, url: str, *, lost: bool) -> None:
    run = work(url, "large")
    assert cli("copy", "--from", url, "--to", "backup").code == 0
    (digest,) = open_store(url).blobs()
    if lost:
        open_store(url).drop_blob(digest)
    elif "://" in url:
        with contextlib.closing(sqlite3.connect("doctor.db")) as db:
            db.execute("UPDATE blobs SET data = zeroblob(length(data))")
            db.commit()
    else:
        path = Path(url, "blobs", digest[:2], digest)
        path.write_bytes(b"\0" * path.stat().st_size)
    told = found(cli, code=3, url=url)
    assert told.keys() == {("blob", run)}
    mend(cli, told["blob", run].replace("BACKUP", "backup"))
    assert found(cli, code=0, url=url) == {}


@pytest.mark.damaged
def test_traces_that_are_damaged_or_gone(cli: Cli, store: Path, edit: Any) -> None:
    damaged, gone, fine = (work(store, "a", name=name) for name in ("damaged", "gone", "fine"))
    shutil.copytree(store, "backup")
    edit(damaged, lambda lines: [*lines[:1], lines[1].replace(b"keep", b"kept"), *lines[2:]])
    (store / "logs" / f"{gone}.jsonl").unlink()
    told = found(cli, code=3)
    assert told.keys() == {("trace_corrupt", damaged), ("trace_missing", gone)}
    assert told["trace_corrupt", damaged] == ""
    assert "no command of Rollcage mends this" in cli("doctor").out
    mend(cli, told["trace_missing", gone].replace("BACKUP", "backup"))
    assert found(cli, code=3).keys() == {("trace_corrupt", damaged)}
    assert JsonlStore(store).read(fine).data


def test_a_schema_of_another_version(cli: Cli) -> None:
    work("sqlite:///doctor.db", "a")
    with contextlib.closing(sqlite3.connect("doctor.db")) as db:
        db.execute("PRAGMA user_version = 99")
    told = cli("doctor", "--store", "sqlite:///doctor.db", "--json")
    assert told.code == 3
    (finding,) = told.data["findings"]
    assert finding["code"] == "store_unusable"
    assert "has the schema 99" in finding["message"]


def test_it_is_legible_everywhere(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    work(".rollcage", "unknown")
    for command in (["doctor"], ["prune", "--older", "0s"], ["copy", "--to", "target"]):
        for setting in ({"NO_COLOR": "1"}, {}):
            with monkeypatch.context() as patch:
                for name, value in setting.items():
                    patch.setenv(name, value)
                assert "\x1b" not in cli(*command).out
    assert all(len(line) <= 80 for line in cli("copy", "--to", "other").out.splitlines()[:2])
    assert cli("doctor", "--store", "elsewhere").code == 2
    assert not os.path.exists("elsewhere")  # noqa: PTH110 - as a user would look
