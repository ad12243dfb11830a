"""`rollcage import` of the runs of an earlier version: a whole store of them."""

from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr
from rollcage import Session, tool
from rollcage.errors import RunNotFound, StoreInvalid
from rollcage.session.session import Session as OldSession
from rollcage_cli.app import main
from rollcage_import import import_old_runs

ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@tool(name="oldpkg.send", effect="write")
def send(to: str) -> str:
    ran.append(to)
    return f"sent to {to}"


@tool(name="oldpkg.log_in", effect="read", secret=["pin"])
def log_in(user: str, pin: SecretStr) -> str:
    ran.append(user)
    return f"{user} is in"


def dies(folder: Path, name: str, *to: str) -> str:
    session = OldSession(name, store=folder)
    with pytest.raises(ZeroDivisionError), session:
        for each in to:
            send(each)
        raise ZeroDivisionError
    return session.run_id


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    dies(folder, "mail", "ann")
    dies(folder, "mail", "ann", "bob")
    with OldSession("secret", store=folder):
        log_in("ann", SecretStr("hunter2-hunter2"))
    with OldSession("secret", store=folder, replay="offline"):
        log_in("ann", SecretStr("hunter2-hunter2"))
    return folder


def test_every_run_of_a_store_goes_on_as_a_log(old: Path, tmp_path: Path) -> None:
    found = import_old_runs(old, store=tmp_path / "new")
    assert [(each.name, each.generations, each.refused) for each in found] == [
        ("mail", 2, ""), ("secret", 1, ""),
    ]  # fmt: skip
    ran.clear()
    with Session("mail", store=tmp_path / "new") as session:
        send("ann")
        send("bob")
        send("eve")
    assert (session.run_id, ran) == (found[0].run, ["eve"])
    with Session("secret", store=tmp_path / "new", replay="continue") as session:
        log_in("ann", SecretStr("hunter2-hunter2"))
    assert session.stats.hits == 1, "a secret is known by the HMAC that it had"
    again = import_old_runs(old, store=tmp_path / "new")
    assert [(each.there, each.run) for each in again] == [(True, "")] * 2


def test_a_store_may_be_both_old_and_new(old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / "runs").iterdir()}
    mail, _ = import_old_runs(old, store=old)
    assert {path: path.read_bytes() for path in (old / "runs").iterdir()} == before
    ran.clear()
    with Session("mail", store=old) as session:
        send("ann")
        send("bob")
    assert (session.run_id, ran) == (mail.run, [])


def test_one_run_alone_and_one_that_is_not_there(old: Path, tmp_path: Path) -> None:
    first = min(path.stem for path in (old / "runs").glob("*.jsonl"))
    (one,) = import_old_runs(old, store=tmp_path / "new", run=first)
    assert (one.old, one.generations) == (first, 1)
    with pytest.raises(RunNotFound, match="no run nothing"):
        import_old_runs(old, store=tmp_path / "new", run="nothing")


def test_a_store_with_another_key_is_refused(old: Path, tmp_path: Path) -> None:
    with Session("own", store=tmp_path / "new"):
        log_in("eve", SecretStr("other-other"))
    with pytest.raises(StoreInvalid, match="a key of its own"):
        import_old_runs(old, store=tmp_path / "new")


def test_a_run_whose_source_is_gone_is_named(old: Path, tmp_path: Path) -> None:
    gone = min((old / "runs").glob("*.jsonl"))
    gone.unlink()
    found = import_old_runs(old, store=tmp_path / "new")
    assert [(each.name, gone.stem in each.refused) for each in found] == [
        ("mail", True), ("secret", False),
    ]  # fmt: skip


def test_the_command_takes_a_folder(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--store", str(tmp_path / "new")]
    assert main(["import", str(old), *where]) == 0
    said = capsys.readouterr().out
    assert "mail: 2 runs of the old format" in said
    assert "2 logs imported from rollcage/1" in said
    assert main(["import", str(old), *where, "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert [each["there"] for each in told["runs"]] == [True, True]
