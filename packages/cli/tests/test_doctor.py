"""`rollcage doctor` names what is wrong, each with the command that mends it; and that does."""

import contextlib
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from rollcage import Session, UnknownOutcome, open_store, tool
from rollcage_governance import Registry

URLS = [".rollcage", "sqlite:///doctor.db"]


@tool(effect="write", name="doctor.keep")
def keep(text: str) -> str:
    if text == "unknown":
        raise TimeoutError
    return text


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


def mend(cli: Cli, command: str) -> None:
    words = shlex.split(command.split(" | ", maxsplit=1)[0])
    assert words[0] == "rollcage"
    assert cli(*words[1:]).code == 0


@pytest.mark.parametrize("url", URLS)
def test_a_sound_store(cli: Cli, url: str) -> None:
    work(url, "a", "fail")
    work(url, "a", "b")
    work(url, "c", name="other")
    assert found(cli, code=0, url=url) == {}
    assert cli("doctor", "--store", url).out.startswith("2 runs in ")
    assert cli("doctor", "--store", url).out.endswith(": nothing is wrong\n")


@pytest.mark.parametrize("url", URLS)
def test_what_somebody_has_to_decide(cli: Cli, url: str) -> None:
    stopped = work(url, "a", "fail", name="stopped")
    assert cli("stop", stopped, "--by", "ann", "--store", url).code == 0
    unknown = work(url, "unknown")
    told = found(cli, code=1, url=url)
    assert told.keys() == {("stop_order", stopped), ("outcome_unknown", unknown)}
    mend(cli, told["stop_order", stopped])
    mend(cli, told["outcome_unknown", unknown])
    assert found(cli, code=0, url=url) == {}


@pytest.mark.damaged
def test_a_damaged_log_comes_from_a_backup(cli: Cli, store: Path, edit: Any) -> None:
    damaged, fine = work(store, "a", name="damaged"), work(store, "a", name="fine")
    assert cli("copy", "--to", "backup").code == 0
    edit(damaged, lambda lines: [*lines[:2], lines[2].replace(b"keep", b"kept"), *lines[3:]])
    told = found(cli, code=3)
    assert told.keys() == {("trace_corrupt", damaged)}
    assert f"rollcage copy {damaged} --from BACKUP" in told["trace_corrupt", damaged]
    assert open_store(store).read(fine)


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


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("key", ["lines", "end"])
def test_a_registry_that_was_changed_is_damaged(cli: Cli, url: str, key: str) -> None:
    work(url, "a")
    Registry(url).propose(keep, by="ann")
    assert found(cli, code=0, url=url) == {}
    own = open_store(url)
    kept = own.get("registry", key)
    assert kept is not None
    assert own.swap("registry", key, kept, kept.replace(b"ann", b"eve").replace(b'":2', b'":3'))
    assert found(cli, code=3, url=url) == {("registry_corrupt", ""): ""}
