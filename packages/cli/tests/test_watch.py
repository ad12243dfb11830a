"""`rollcage watch`: a run while it happens; how it ended is the exit code."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_a_run_that_has_ended_is_reported_once(cli: Cli, record: Record) -> None:
    run = record()
    result = cli("watch", "job")
    assert result.code == 0
    assert f"job  {run}" in result.out
    assert '   2 ran      put(path="b.txt", text="some text")' in result.out
    assert '   - put(path="/etc/passwd", text="some text") refused: path_escape' in result.out
    assert "↳ put" in result.out
    assert result.out.endswith(f"run {run}: ok\n")


def test_how_it_ended_is_the_exit_code(cli: Cli, dead: str, store: Path) -> None:
    result = cli("watch", "@payment")
    assert result.code == 7
    assert result.out.endswith(f"run {dead}: died\n")
    with pytest.raises(RuntimeError), Session("job", store=store):
        raise RuntimeError("no")
    assert cli("watch").code == 1
    assert cli("watch", "nobody").code == 2


def test_a_live_run_is_followed_to_its_end(cli: Cli, store: Path, tools: Any) -> None:
    begun, looked = threading.Event(), threading.Event()

    def work() -> None:
        with Session("live", store=store):
            tools.look("first")
            begun.set()
            looked.wait(60)
            tools.look("last")

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(60)
    threading.Timer(0.2, looked.set).start()
    result = cli("watch", "live", "--every", "0.05")
    worker.join()
    assert result.code == 0
    assert result.out.count("look(path=") == 2
    assert "latest" not in result.err


def test_a_changed_line_is_damage(cli: Cli, record: Record, edit: Any) -> None:
    run = record()
    edit(run, lambda lines: [lines[0], *lines[2:]])
    assert cli("watch", run).code == 3


def test_hostile_values_stay_text(cli: Cli, record: Record, evil: str) -> None:
    record(text=evil)
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(cli("watch").out)
