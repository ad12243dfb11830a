"""A stage that is added to a session covers what comes, and is told of what is on record."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, SessionError, Stage, tool
from rollcage.trace.folder import Folder

Event = dict[str, Any]


@tool(name="added.write")
def write(text: str) -> str:
    return f"wrote {text}"


class Watch(Stage):
    """Keeps all that it is told."""

    def __init__(self, heard: list[str] | None = None, name: str = "") -> None:
        self.lines: list[Event] = []
        self.heard = [] if heard is None else heard
        self.name = name
        kinds = ("run", "attempt", "step", "outcome", "ended")
        self.folds = dict.fromkeys(kinds, self.lines.append)

    def opened(self, session: Session) -> None:
        self.heard.append(f"{self.name}opened {session.name}")

    def prepare(self, call: Any, match: Any) -> None:
        self.heard.append(f"{self.name}prepare {call.arguments['text']}")

    def conceal(self, event: Event) -> Event:
        data = orjson.dumps(event)
        return event if b"hush" not in data else orjson.loads(data.replace(b"hush", b"****"))

    def closed(self, session: Session, error: BaseException | None) -> None:
        self.heard.append(f"{self.name}closed {session.name}")

    @property
    def told(self) -> Counter[str]:
        return Counter(line["event"] for line in self.lines)


def test_before_the_session_is_entered(tmp_path: Path) -> None:
    heard: list[str] = []
    session = Session("job", store=tmp_path, stages=[Watch(heard, "brought ")])
    session.add(Watch(heard, "first "))
    session.add(Watch(heard, "then "))
    with session:
        write("a")
    order = ("brought ", "first ", "then ")
    for what in ("opened job", "prepare a", "closed job"):
        assert [each for each in heard if each.endswith(what)] == [name + what for name in order]


def test_after_it_was_entered(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError), Session("job", store=tmp_path):
        write("a")
        raise InterruptedError
    with Session("job", store=tmp_path) as session:
        write("a")
        write("b")
        session.add(watch := Watch())
        on_record = watch.told
        assert write("hush") == "wrote hush"
        write("d")
    assert on_record == Counter(run=1, attempt=2, step=2, outcome=2, ended=1)
    assert watch.told == on_record + Counter(step=2, outcome=2, ended=1)
    assert watch.heard == ["opened job", "prepare hush", "prepare d", "closed job"]
    lines = Folder(tmp_path).read(session.run_id)
    assert [b"hush" in line for line in lines].count(True) == 0
    assert [b"****" in line for line in lines].count(True) == 2


def test_in_a_run_that_has_no_step_yet(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        session.add(watch := Watch())
        write("a")
    assert watch.told == Counter(step=1, outcome=1, ended=1)


def test_in_a_session_inside_of_another(tmp_path: Path) -> None:
    with Session("outer", store=tmp_path, stages=[brought := Watch()]):
        write("a")
        with Session("inner", store=tmp_path) as inner:
            inner.add(watch := Watch())
            write("b")
        write("hush")
    assert watch.heard == ["opened inner", "prepare b", "prepare hush", "closed outer"]
    assert watch.told == brought.told  # each line once
    assert brought.heard == ["opened outer", "prepare a", *watch.heard[1:]]
    assert b"hush" not in b"".join(Folder(tmp_path).read(inner.run_id))


def test_in_a_session_with_a_run_of_its_own(tmp_path: Path) -> None:
    with Session("outer", store=tmp_path / "one") as outer:
        with Session("inner", store=tmp_path / "two") as inner:
            inner.add(watch := Watch())
            write("b")
        write("hush")
    assert watch.heard == ["opened inner", "prepare b", "closed inner"]
    assert watch.told == Counter(step=1, outcome=1, ended=1)
    assert b"hush" in b"".join(Folder(tmp_path / "one").read(outer.run_id))


def test_one_that_copies_a_run_is_refused(tmp_path: Path) -> None:
    class Copies(Stage):
        @property
        def copies(self) -> str:
            return "some run"

    with pytest.raises(SessionError, match="in stages="):
        Session("job", store=tmp_path).add(Copies())
