"""An export of Langfuse becomes runs: as its API gives it, as its page does, and as files."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage.trace.recorded import trace_of
from rollcage_import import Unreadable, import_file
from rollcage_views import Run, read_run

TRACE: dict[str, Any] = {
    "id": "t-1",
    "timestamp": "2026-03-01T10:00:00.000Z",
    "name": "support",
    "sessionId": "thread-7",
    "input": {"question": "refund?"},
    "public": False,
}
ASKS = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}


def observation(own: str, kind: str, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": own,
        "traceId": "t-1",
        "type": kind,
        "name": own,
        "startTime": f"2026-03-01T10:00:{second:02}.123Z",
        "endTime": f"2026-03-01T10:00:{second + 1:02}.123Z",
        "parentObservationId": None,
        "level": "DEFAULT",
        "statusMessage": None,
        "someNewField": [1, 2],
        **fields,
    }


OBSERVATIONS = [
    observation("step", "SPAN", 1),
    observation(
        "llm", "GENERATION", 2, parentObservationId="step", model="gpt",
        input=[{"role": "user", "content": "refund?"}],
        output={"role": "assistant", "content": None, "tool_calls": [ASKS]},
        usageDetails={"input": 11, "output": 5, "total": 16},
    ),
    observation(
        "refund", "TOOL", 4, input='{"order": 7}', output={"ok": True},
        metadata='{"tool_call_id": "c1"}',
    ),
    observation("mail", "TOOL", 6, input={"to": "ann"}, level="ERROR", statusMessage="no such box"),
    observation("note", "EVENT", 8, endTime=None),
]  # fmt: skip


def snake(given: dict[str, Any]) -> dict[str, Any]:
    return {"".join(f"_{c.lower()}" if c.isupper() else c for c in k): v for k, v in given.items()}


SHAPES: dict[str, bytes] = {
    "of the API": orjson.dumps({**TRACE, "observations": OBSERVATIONS}),
    "of the page": orjson.dumps({"trace": TRACE, "observations": OBSERVATIONS}),
    "a page of observations": orjson.dumps({"data": OBSERVATIONS, "meta": {"page": 1}}),
    "lines": b"\n".join(orjson.dumps(snake(each)) for each in OBSERVATIONS),
}


def take(folder: Path, data: bytes) -> tuple[Any, Run]:
    file = folder / "export.json"
    file.write_bytes(data)
    found = import_file(file, store=folder / "store")
    return found, read_run(trace_of(folder / "store", found.runs[0].run))


@pytest.mark.parametrize("shape", SHAPES)
def test_observations_are_steps_in_whichever_shape(tmp_path: Path, shape: str) -> None:
    found, run = take(tmp_path, SHAPES[shape])
    assert found.format == "langfuse"
    model, refund, mail = run.steps
    assert (model.kind, model.name) == ("model", "gpt")
    assert model.args == {"messages": [{"role": "user", "content": "refund?"}]}
    assert (model.outcome or {})["usage"] == {"input_tokens": 11, "output_tokens": 5}
    assert (refund.args, refund.call_id) == ({"order": 7}, "c1")
    assert (refund.outcome or {})["value"] == {"ok": True}
    assert (mail.state, (mail.outcome or {})["error"]["message"]) == ("failed", "no such box")
    assert found.runs[0].skipped == {
        "an observation of the type SPAN": 1,
        "an observation of the type EVENT": 1,
    }
    assert found.runs[0].trace == "t-1"
    named = {"of the API": "support", "of the page": "support"}
    assert run.started["name"] == named.get(shape, "imported")


@pytest.mark.parametrize(
    "bad", [{"data": [7]}, {"observations": 7, "id": "t"}, {"observations": [{}]}]
)
def test_what_lacks_all_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(Unreadable):
        take(tmp_path, orjson.dumps(bad))
