"""A recorded tool is found under whichever name a framework gives it."""

from pathlib import Path

import pytest
from rollcage import Contract
from rollcage.adapter import Answer, RecordedAnswers, ToolRequest
from rollcage.session.session import Session

MODEL = Contract(name="m", parameters={"properties": {}}, effect="read")


@pytest.mark.parametrize(
    ("recorded", "offered"),
    [
        ("Read a file's content", "read_a_files_content"),
        ("Write: it down!", "write_it_down"),
        ("sendMail", "send_mail"),
        ("Café", "cafe"),
        ("send-mail", "Send Mail"),
    ],
)
def test_a_name_is_told_by_its_letters_and_digits(
    tmp_path: Path, recorded: str, offered: str
) -> None:
    answer = Answer(tool_calls=(ToolRequest(recorded, "{}"),))
    with Session("names", store=tmp_path) as session:
        session.run(MODEL, {}, lambda **_: "", kind="model", answer=lambda _: answer)
    answers = RecordedAnswers(tmp_path / "runs" / f"{session.run_id}.jsonl")
    given = answers.next([offered, "other"])
    assert given is not None
    assert given.tool_calls[0].name == offered
