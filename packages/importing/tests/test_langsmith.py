"""An export of LangSmith becomes a run: the shapes are those of its tracer in LangChain."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage.trace.recorded import trace_of
from rollcage_import import import_file
from rollcage_views import Run, read_run

TOP = "0191d0d5-1b5e-7000-8000-000000000001"


def run_of(own: int, kind: str, name: str, second: int, parent: str = "", **fields: Any) -> Any:
    return {
        "id": TOP if own == 1 else f"{TOP[:-1]}{own}",
        "name": name,
        "run_type": kind,
        "start_time": f"2026-03-01T10:00:{second:02}.100000",
        "end_time": f"2026-03-01T10:00:{second + 1:02}.100000",
        "parent_run_id": parent or None,
        "trace_id": TOP,
        "inputs": {},
        "outputs": {},
        "error": None,
        "extra": {},
        **fields,
    }


def message(kind: str, **fields: Any) -> dict[str, Any]:
    where = ["langchain", "schema", "messages", kind]
    return {"lc": 1, "type": "constructor", "id": where, "kwargs": fields}


def inside(node: int) -> str:
    return f"{TOP[:-1]}{node}"


ASKED = message("HumanMessage", content="how much", type="human")
ANSWER = message(
    "AIMessage", content="", type="ai",
    tool_calls=[{"name": "price", "args": {"item": "apple"}, "id": "c1", "type": "tool_call"}],
    usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
)  # fmt: skip
TOLD = message("ToolMessage", content='{"euros": 2}', type="tool", name="price", tool_call_id="c1")
RUNS = [
    run_of(1, "chain", "shop", 0, inputs={"messages": [["user", "how much"]]}),
    run_of(2, "chain", "model", 1, TOP),
    run_of(
        3, "llm", "ChatModel", 2, inside(2), inputs={"messages": [[ASKED]]},
        outputs={"generations": [[{"text": "", "message": ANSWER}]], "llm_output": None},
        extra={"metadata": {"ls_model_name": "gpt", "thread_id": "7", "lc_agent_name": "shop"}},
    ),
    run_of(4, "chain", "tools", 4, TOP),
    run_of(
        5, "tool", "price", 5, inside(4), inputs={"item": "apple"}, outputs={"output": TOLD},
        extra={"tool_call_id": "c1"},
    ),
    run_of(
        6, "tool", "mail", 7, TOP, inputs={"input": '{"to": "ann"}'},
        error="ValueError('no such box')Traceback ...",
    ),
    run_of(7, "parser", "out", 9, TOP),
]  # fmt: skip


def nested() -> dict[str, Any]:
    runs = {each["id"]: {**each, "child_runs": []} for each in RUNS}
    for each in runs.values():
        if each["parent_run_id"]:
            runs[each["parent_run_id"]]["child_runs"].append(each)
        del each["trace_id"]
    return runs[TOP]


SHAPES = {
    "lines": b"\n".join(map(orjson.dumps, reversed(RUNS))),
    "a list": orjson.dumps(RUNS),
    "a page": orjson.dumps({"runs": RUNS, "cursors": {}}),
    "nested": orjson.dumps(nested()),
}


def take(folder: Path, data: bytes) -> tuple[Any, Run]:
    file = folder / "runs.jsonl"
    file.write_bytes(data)
    found = import_file(file, store=folder / "store")
    return found, read_run(trace_of(folder / "store", found.runs[0].run))


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_are_steps_in_whichever_shape(tmp_path: Path, shape: str) -> None:
    found, run = take(tmp_path, SHAPES[shape])
    assert found.format == "langsmith"
    assert run.started["name"] == "shop"
    model, price, mail = run.steps
    assert (model.name, model.agent) == ("gpt", "shop")
    assert model.args == {"messages": [{"role": "user", "content": "how much"}]}
    outcome = model.outcome or {}
    assert outcome["answer"]["tool_calls"] == [
        {"name": "price", "arguments": '{"item":"apple"}', "id": "c1"}
    ]
    assert outcome["usage"] == {"input_tokens": 3, "output_tokens": 4}
    assert (price.args, price.call_id, price.slot) == ({"item": "apple"}, "c1", 0)
    assert (price.outcome or {})["value"] == {"euros": 2}
    assert mail.args == {"to": "ann"}
    assert (mail.outcome or {})["error"]["type"] == "ValueError"
    assert found.runs[0].skipped == {"a run of the type chain": 2, "a run of the type parser": 1}


def test_a_trace_in_another_shape_is_one_run(tmp_path: Path) -> None:
    first, _ = take(tmp_path, SHAPES["lines"])
    again, _ = take(tmp_path, SHAPES["nested"])
    assert again.runs[0].there
    assert again.runs[0].run == first.runs[0].run
