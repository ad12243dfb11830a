"""`ConsoleApprover`: somebody at the terminal decides, while the call waits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rollcage import ApprovalInvalid, Blocked, Session, StepView, Verdict, tool
from rollcage_policy import ConsoleApprover

ran: list[str] = []


@tool
def send(text: str) -> str:
    """Send a text."""
    ran.append(text)
    return f"sent {text}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?")


def guarded(store: Path, approver: Any) -> Session:
    return Session("job", store=store, gate=[asks], approver=approver)


def at_console(text: str) -> tuple[ConsoleApprover, io.StringIO]:
    shown = io.StringIO()
    return ConsoleApprover(by="ann", given=io.StringIO(text), shown=shown), shown


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("a\n", "sent a"),
        ("Approve\n", "sent a"),
        ('e\n{"text": "b"}\n', "sent b"),
        ('s\n"later"\n', "later"),
    ],
)
def test_somebody_at_a_terminal_decides(tmp_path: Path, typed: str, said: str) -> None:
    approver, shown = at_console(typed)
    with guarded(tmp_path, approver):
        assert send("a") == said
    assert "send needs approval: is that so?\n  text = a\n" in shown.getvalue()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "not approved"),
        ("\n", "not approved"),
        ("yes\n", "not approved"),
        ("r\nuse another word\n", "use another word"),
        ("r\n", "the call was not approved"),
        ("e\n", "not a JSON object"),
        ("e\n[1]\n", "not a JSON object"),
        ("s\nlater\n", "not JSON"),
    ],
)
def test_whatever_is_no_yes_at_a_terminal_is_a_no(tmp_path: Path, typed: str, said: str) -> None:
    approver, _ = at_console(typed)
    with guarded(tmp_path, approver), pytest.raises(Blocked, match=said):
        send("a")
    assert ran == []


def test_what_a_model_wrote_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    approver, shown = at_console("a\n")
    with guarded(tmp_path, approver) as session, session.place(agent="\x1b[2J"):
        send("\x1b]0;owned\x07 a\n  b = fine \u202e")
    text = shown.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\x1b]0;owned\\x07 a\\n  b = fine \\u202e" in text


def test_by_default_the_terminal_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n"))
    with guarded(tmp_path, ConsoleApprover(by="ann")):
        assert send("a") == "sent a"
    assert "needs approval" in capsys.readouterr().err


def test_the_console_decides(tmp_path: Path) -> None:
    shown = io.StringIO()
    console = ConsoleApprover(by="ann", given=io.StringIO('e\n{"text": "z"}\nn\n'), shown=shown)
    with guarded(tmp_path, console):
        assert send("a") == "sent z"
        with pytest.raises(Blocked, match="not approved"):
            send("b")
    assert "send needs approval" in shown.getvalue()


@pytest.mark.parametrize("name", ["ann\u200b", "ann\x1b[2K", "\u2800"])
def test_a_name_that_can_not_be_seen_is_refused(name: str) -> None:
    with pytest.raises(ApprovalInvalid, match="by="):
        ConsoleApprover(by=name)
