"""Spans of OpenTelemetry become the steps that they tell of, whoever wrote them."""

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]  # it has none
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from rollcage import (
    ReplayedError,
    ReplayMiss,
    Session,
    Verdict,
    abandon_run,
    list_runs,
    open_store,
    pause_run,
    plan_undo,
    resolve_step,
    run_info,
    stop_run,
    tool,
    undo_run,
)
from rollcage.errors import ForkEnded, OrderRefused, RollcageError, SessionError
from rollcage.trace import check_events
from rollcage.trace.recorded import trace_of
from rollcage_adapter import Answer, ToolRequest, model_contract
from rollcage_fork import Fork
from rollcage_import import Imports, import_file, recording
from rollcage_otel.export import spans_of
from rollcage_views import Run, read_run

TRACE = "0af7651916cd43dd8448eb211c80319c"


def attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [attribute(each) for each in value]}}
    if isinstance(value, dict):
        pairs = [{"key": name, "value": attribute(each)} for name, each in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": value}


def span(own: str, parent: str = "", at: int = 1, **fields: Any) -> dict[str, Any]:
    """A span as OTLP's JSON has it; `said` are its attributes."""
    said = fields.pop("said", {})
    return {
        "traceId": TRACE,
        "spanId": own.rjust(16, "a"),
        "parentSpanId": parent.rjust(16, "a") if parent else "",
        "name": fields.pop("name", own),
        "startTimeUnixNano": str(at * 1_000_000),
        "endTimeUnixNano": str((at + 1) * 1_000_000),
        "attributes": [{"key": name, "value": attribute(each)} for name, each in said.items()],
        **fields,
    }


def tool_span(own: str, parent: str = "1", at: int = 2, **fields: Any) -> dict[str, Any]:
    said = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "price",
        "gen_ai.tool.call.arguments": '{"item":"apple"}',
        "gen_ai.tool.call.result": '{"euros":2}',
        **fields.pop("said", {}),
    }
    return span(own, parent, at, said=said, **fields)


AGENT = span("1", said={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "shop"})


def document(*spans: dict[str, Any]) -> dict[str, Any]:
    return {
        "resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]
    }


def take(folder: Path, *spans: dict[str, Any], **options: Any) -> tuple[Imports, Run]:
    file = folder / "spans.json"
    file.write_bytes(orjson.dumps(document(*spans)))
    found = import_file(file, store=folder / "store", **options)
    trace = trace_of(folder / "store", found.runs[0].run)
    check_events(trace.data, trace.where)  # against the published schema
    return found, read_run(trace)


# --- a run of Rollcage, there and back -----------------------------------------------------------


@tool(effect="read")
def price(item: str) -> int:
    """The price."""
    return len(item)


@tool
def buy(items: list[str]) -> dict[str, object]:
    """Buy."""
    return {"total": sum(price(each) for each in items), "items": items}


@tool(raises=[ValueError])
def fail(times: int) -> None:
    """Fail."""
    raise ValueError("no luck")


def shopping(folder: Path) -> Run:
    store = open_store(folder / "before")
    asks = (ToolRequest("buy", '{"items":["apple","fig"]}', "c1"),)
    answer = Answer("let me see", tool_calls=asks, usage={"input_tokens": 3, "output_tokens": 5})
    with Session("shopping", store=store) as session:
        asked = {"messages": [{"role": "user", "content": "two fruits"}]}
        model = model_contract("gpt", "")
        session.run_call(model, asked, lambda **_: ["x"], kind="model", answer=lambda _: answer)
        with session.place(turn=1, slot=0, call_id="c1", agent="buyer"):
            buy(["apple", "fig"])
        with pytest.raises(ValueError, match="no luck"):
            fail(times=3)
    spans = encode_spans(spans_of(store.read(session.run_id), content=True))
    (folder / "spans.pb").write_bytes(spans.SerializeToString())
    data = spans.SerializeToString()
    (folder / "framed.pb").write_bytes(len(data).to_bytes(4, "big") + data)
    told = MessageToDict(spans)
    for each in told["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for field in ("traceId", "spanId", "parentSpanId"):
            each[field] = base64.b64decode(each.get(field, "")).hex()
    (folder / "spans.json").write_bytes(orjson.dumps(told))
    (folder / "lines.jsonl").write_bytes(orjson.dumps(told) + b"\n")
    return read_run(trace_of(store, session.run_id))


def steps(run: Run) -> list[object]:
    return [
        (
            step.step, step.kind, step.name, step.effect, step.args, step.parent, step.state,
            step.call_id, step.agent, step.turn, step.slot, step.time,
            {
                **(step.outcome or {}),
                "value": (step.outcome or {}).get("value") if step.kind == "tool" else None,
                "error": {
                    part: text
                    for part, text in ((step.outcome or {}).get("error") or {}).items()
                    if part in ("type", "message")
                },
            },
        )
        for step in run.steps
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["spans.json", "lines.jsonl", "spans.pb", "framed.pb"])
def test_an_exported_run_comes_back_with_its_steps(tmp_path: Path, name: str) -> None:
    before = shopping(tmp_path)
    found = import_file(tmp_path / name, store=tmp_path / "after")
    assert (found.format, found.skipped) == ("otel", {})
    assert found.runs[0].skipped == {"an attempt at the run": 1}
    after = read_run(trace_of(tmp_path / "after", found.runs[0].run))
    assert steps(after) == steps(before)
    assert after.started["name"] == "shopping"


def test_attempts_of_a_run_are_no_steps(tmp_path: Path) -> None:
    store = open_store(tmp_path / "before")
    with pytest.raises(ZeroDivisionError), Session("shopping", store=store):
        price("apple")
        buy(["fig"])
        raise ZeroDivisionError
    with Session("shopping", store=store) as session:
        price("apple")
        buy(["fig"])
        price("plum")
    spans = encode_spans(spans_of(store.read(session.run_id), content=True))
    (tmp_path / "spans.pb").write_bytes(spans.SerializeToString())
    (found,) = import_file(tmp_path / "spans.pb", store=tmp_path / "after").runs
    run = read_run(trace_of(tmp_path / "after", found.run))
    assert [(step.name, step.parent) for step in run.steps] == [
        ("price", None), ("buy", None), ("price", 2), ("price", None),
    ]  # fmt: skip
    assert (found.name, run.status) == ("shopping", "ok")
    assert found.skipped == {"an attempt at the run": 2, "a call that was replayed": 2}


def test_a_mark_of_the_byte_order_is_skipped(tmp_path: Path) -> None:
    shopping(tmp_path)
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "spans.json").read_bytes())
    (run,) = import_file(marked, store=tmp_path / "after").runs
    assert run.name == "shopping"


def test_importing_again_changes_nothing(tmp_path: Path) -> None:
    shopping(tmp_path)
    (first,) = import_file(tmp_path / "spans.json", store=tmp_path / "after").runs
    lines = open_store(tmp_path / "after").read(first.run)
    (again,) = import_file(tmp_path / "spans.pb", store=tmp_path / "after", name="other").runs
    assert (again.run, again.name, again.there) == (first.run, "shopping", True)
    assert open_store(tmp_path / "after").read(first.run) == lines


def test_an_import_that_was_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shopping(tmp_path)
    said = recording._raised

    def interrupted(_: object) -> ReplayedError:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "_raised", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_file(tmp_path / "spans.json", store=tmp_path / "after")
    assert list_runs(tmp_path / "after") == [], "half a run is none"
    monkeypatch.setattr(recording, "_raised", said)
    (whole,) = import_file(tmp_path / "spans.json", store=tmp_path / "after").runs
    assert not whole.there
    (again,) = import_file(tmp_path / "spans.json", store=tmp_path / "after").runs
    assert (again.there, again.run) == (True, whole.run)
    assert len(list_runs(tmp_path / "after")) == 1


def test_a_session_around_an_import_hears_nothing(tmp_path: Path) -> None:
    def deny(_: object) -> Verdict:
        return Verdict("deny", "no", code="no")

    told: list[object] = []
    with Session("outer", store=tmp_path / "outer", gate=[deny], observers=[told.append]) as outer:
        _, run = take(tmp_path, AGENT, tool_span("2"))
    assert (len(run.steps), told, outer.stats.calls) == (1, [], 0)
    assert run.attempts[0].gate == []


# --- the names of others -------------------------------------------------------------------------

ASKED = {"role": "user", "content": "how much?"}
ITEM = {"arguments": {"item": "apple"}}
OUT = "llm.output_messages.0.message"
PROMPT = [{"role": "user", "content": [{"type": "text", "text": "how much?"}]}]
CALLS = [{"toolCallId": "c1", "toolName": "price", "args": '{"item": "apple"}'}]

MODELS: dict[str, dict[str, Any]] = {
    "conventions": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt",
        "gen_ai.input.messages": orjson.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": "how much?"}]}]
        ).decode(),
        "gen_ai.output.messages": orjson.dumps(
            [
                {
                    "role": "assistant",
                    "parts": [
                        {"type": "text", "content": "hm"},
                        {"type": "tool_call", "id": "c1", "name": "price", **ITEM},
                    ],
                }
            ]
        ).decode(),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
    },
    "OpenLLMetry": {
        "llm.request.type": "chat",
        "gen_ai.request.model": "gpt",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "how much?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "hm",
        "gen_ai.completion.0.tool_calls.0.id": "c1",
        "gen_ai.completion.0.tool_calls.0.name": "price",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"item": "apple"}',
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 4,
    },
    "OpenInference": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "how much?",
        f"{OUT}.role": "assistant",
        f"{OUT}.content": "hm",
        f"{OUT}.tool_calls.0.tool_call.id": "c1",
        f"{OUT}.tool_calls.0.tool_call.function.name": "price",
        f"{OUT}.tool_calls.0.tool_call.function.arguments": '{"item": "apple"}',
        "llm.token_count.prompt": 3,
        "llm.token_count.completion": 4,
    },
    "AI SDK": {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.model.id": "gpt",
        "ai.prompt.messages": orjson.dumps(PROMPT).decode(),
        "ai.response.text": "hm",
        "ai.response.toolCalls": orjson.dumps(CALLS).decode(),
        "ai.usage.promptTokens": 3,
        "ai.usage.completionTokens": 4,
    },
}  # fmt: skip
TOOLS: dict[str, dict[str, Any]] = {
    "OpenLLMetry": {
        "traceloop.span.kind": "tool",
        "traceloop.entity.name": "price",
        "traceloop.entity.input": '{"item": "apple"}',
        "traceloop.entity.output": '{"euros": 2}',
    },
    "OpenInference": {
        "openinference.span.kind": "TOOL",
        "tool.name": "price",
        "input.value": '{"item": "apple"}',
        "output.value": '{"euros": 2}',
    },
    "AI SDK": {
        "ai.operationId": "ai.toolCall",
        "ai.toolCall.name": "price",
        "ai.toolCall.args": '{"item": "apple"}',
        "ai.toolCall.result": '{"euros": 2}',
    },
}


@pytest.mark.parametrize("said", MODELS.values(), ids=MODELS)
def test_a_models_call_by_whichever_names(tmp_path: Path, said: dict[str, Any]) -> None:
    _, run = take(
        tmp_path,
        AGENT,
        span("2", "1", 2, said=said),
        tool_span("3", at=4, said={"gen_ai.tool.call.id": "c1"}),
    )
    model, called = run.steps
    assert (model.kind, model.name, model.args) == ("model", "gpt", {"messages": [ASKED]})
    outcome = model.outcome or {}
    assert outcome["answer"]["text"] == "hm"
    (asked,) = outcome["answer"]["tool_calls"]
    assert (asked["id"], asked["name"]) == ("c1", "price")
    assert orjson.loads(asked["arguments"]) == {"item": "apple"}
    assert outcome["usage"] == {"input_tokens": 3, "output_tokens": 4}
    assert (called.call_id, called.slot) == ("c1", 0)


@pytest.mark.parametrize("said", TOOLS.values(), ids=TOOLS)
def test_a_tools_call_by_whichever_names(tmp_path: Path, said: dict[str, Any]) -> None:
    _, run = take(tmp_path, AGENT, span("2", "1", 2, said=said))
    (step,) = run.steps
    assert (step.name, step.args, step.state) == ("price", {"item": "apple"}, "ran")
    assert (step.outcome or {})["value"] == {"euros": 2}


def test_messages_in_events_are_read_too(tmp_path: Path) -> None:
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt"}
    events = [
        {"name": name, "attributes": [{"key": key, "value": attribute(value)}]}
        for name, key, value in (
            ("gen_ai.user.message", "content", "how much?"),
            ("gen_ai.choice", "message", {"content": "two"}),
        )
    ]
    _, run = take(tmp_path, AGENT, span("2", "1", 2, said=said, events=events))
    assert run.steps[0].args == {"messages": [ASKED]}
    assert (run.steps[0].outcome or {})["answer"]["text"] == "two"


def test_what_langchains_instrumentation_tells_is_put_together(tmp_path: Path) -> None:
    """OpenInference tells one argument alone, and the message for the model as the result."""
    top = span("1", name="shop", said={"openinference.span.kind": "CHAIN"})
    asks = {**MODELS["OpenInference"], "gen_ai.request.model": "gpt"}
    told = {"content": '{"euros": 2}', "type": "tool", "name": "price", "tool_call_id": "c1"}
    said = {
        "openinference.span.kind": "TOOL",
        "tool.name": "price",
        "input.value": "apple",
        "output.value": orjson.dumps({"type": "tool", "data": told}).decode(),
    }
    chain = span("4", "1", 4, said={"openinference.span.kind": "CHAIN"})
    found, run = take(
        tmp_path, top, span("2", "1", 2, said=asks), chain, span("5", "4", 4, said=said)
    )
    step = run.steps[1]
    assert (step.args, step.call_id, step.slot) == ({"item": "apple"}, "c1", 0)
    assert (step.outcome or {})["value"] == {"euros": 2}
    assert (found.runs[0].name, found.runs[0].skipped) == (
        "shop",
        {"openinference.span.kind CHAIN": 1},
    )


# --- what is left out, and what can't be trusted -------------------------------------------------


def test_a_step_without_content_says_so(tmp_path: Path) -> None:
    said = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "price"}
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt"}
    _, run = take(tmp_path, AGENT, span("2", "1", 2, said=chat), span("3", "1", 4, said=said))
    for step in run.steps:
        assert "not recorded" in (step.outcome or {})["lossy"]
    assert run.steps[0].args == {"messages": [{"$rollcage": "redacted"}]}
    assert run.steps[1].args == {"input": {"$rollcage": "redacted"}}


def test_what_is_no_step_is_counted_by_why(tmp_path: Path) -> None:
    chain = span("2", "1", 2, said={"openinference.span.kind": "CHAIN"})
    http = span("4", "3", 2, name="GET", said={"http.request.method": "GET"})
    found, run = take(tmp_path, AGENT, chain, tool_span("3", "2"), http)
    assert [(step.name, step.parent) for step in run.steps] == [("price", None)]
    expected = {"openinference.span.kind CHAIN": 1, "not an operation of the conventions": 1}
    assert found.runs[0].skipped == run.started["imported"]["skipped"] == expected


def test_a_call_that_two_tell_of_is_one(tmp_path: Path) -> None:
    bare = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "price"}
    found, run = take(tmp_path, AGENT, span("2", "1", 2, said=bare), tool_span("3", "2"))
    (step,) = run.steps
    assert step.args == {"item": "apple"}
    assert "another instrumentation" in str(found.runs[0].skipped)
    inner = tool_span("3", "2", said={"gen_ai.tool.call.arguments": '{"item":"core"}'})
    other = tmp_path / "other"
    other.mkdir()
    _, run = take(other, AGENT, tool_span("2", "1"), inner)
    assert [step.parent for step in run.steps] == [None, 1]  # it called itself


def test_agents_inside_of_agents_are_steps_with_steps(tmp_path: Path) -> None:
    said = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"}
    _, run = take(tmp_path, AGENT, span("2", "1", 2, said=said), tool_span("3", "2"))
    assert [(s.name, s.effect, s.parent) for s in run.steps] == [
        ("helper", "scope", None),
        ("price", "write", 1),
    ]


def test_calls_at_once_are_of_one_turn(tmp_path: Path) -> None:
    together = [tool_span(own, at=at) for own, at in (("2", 2), ("3", 2), ("4", 9))]
    together[0]["endTimeUnixNano"] = together[1]["endTimeUnixNano"] = "5000000"
    _, run = take(tmp_path, AGENT, *together)
    one, two, later = ((step.turn, step.slot, step.position) for step in run.steps)
    assert one[0] == two[0]
    assert one[0] != later[0]
    assert (one[1], two[1]) == (0, 1)
    assert one[2] == two[2]
    assert one[2] != later[2]


def test_circles_strangers_and_doubles_do_no_harm(tmp_path: Path) -> None:
    circle = [tool_span("5", "6"), tool_span("6", "5"), tool_span("7", "7", at=8)]
    stranger, double = tool_span("8", "nobody", at=9), tool_span("8", "nobody", at=9)
    found, run = take(tmp_path, AGENT, *circle, stranger, double)
    assert [step.time for step in run.steps] == [8000, 9000]
    assert found.runs[0].skipped == {
        "its parents form a circle": 2,
        "a duplicate: it has the id of another span": 1,
    }


def test_clocks_may_be_wrong(tmp_path: Path) -> None:
    back = tool_span("2", at=50, endTimeUnixNano="7000000")
    late = tool_span("3", "2", at=3, said={"gen_ai.tool.name": "look"})
    endless = tool_span("4", at=60, endTimeUnixNano="0")
    _, run = take(tmp_path, AGENT, back, late, endless)
    first, inner, last = run.steps
    assert (first.time, first.ended, first.duration) == (50_000, 50_000, 0)
    assert (inner.parent, inner.time) == (1, 3000)
    assert (last.outcome or {})["error"] == {"type": "Unfinished", "message": "the span has no end"}


def test_errors_are_those_of_the_span(tmp_path: Path) -> None:
    raised = {"exception.type": "TimeoutError", "exception.message": "too slow"}
    events = [
        {
            "name": "exception",
            "attributes": [{"key": k, "value": attribute(v)} for k, v in raised.items()],
        }
    ]
    bad = tool_span("2", events=events, status={"code": 2, "message": "!"})
    odd = tool_span(
        "3",
        at=5,
        status={"code": "STATUS_CODE_ERROR", "message": "? no"},
        said={"error.type": "a b;c"},
    )
    top = {**AGENT, "status": {"code": 2, "message": "gave up"}}
    _, run = take(tmp_path, top, bad, odd)
    assert [(step.outcome or {})["error"] for step in run.steps] == [
        {"type": "TimeoutError", "message": "too slow"},
        {"type": "Error", "message": "? no"},
    ]
    assert run.status == "error"
    assert (run.finished or {})["error"] == {"type": "Error", "message": "gave up"}


@pytest.mark.parametrize(
    "bad",
    [
        b'{"resourceSpans": 7}', b'{"resourceSpans": [{"scopeSpans": [{"spans": [7, {}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": {"spans": "x"}}]}', b"[]", b"{}", b"7", b'"x"', b"",
        b"{", b'{"resourceSpans"', b"[[[[[[", b"\x00\x00\x00\x05abc", b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_export_is_refused(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "spans.json"
    file.write_bytes(bad)
    with pytest.raises(RollcageError):
        import_file(file, store=tmp_path / "store")
    assert not list((tmp_path / "store").rglob("*.jsonl"))


def test_hostile_values_stay_values(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    strange = {
        "$rollcage": "secret", "a\u202eb": {"$rollcage": "blob", "sha256": "../../etc/passwd"},
        "self": 1, "_": 2, "kind": 3, "session": 10**30,
    }  # fmt: skip
    spans = [
        tool_span("2", said={"gen_ai.tool.call.arguments": orjson.dumps({"deep": deep}).decode()}),
        tool_span("3", at=5, said={"gen_ai.tool.call.arguments": str(strange).replace("'", '"')}),
        tool_span("4", at=7, said={"gen_ai.tool.name": "a\x1b[31m\n" * 500}),
        tool_span("5", at=9, said={"gen_ai.tool.call.arguments": "[1, 2]", "gen_ai.tool.name": ""}),
    ]
    found, run = take(tmp_path, AGENT, *spans)
    assert [len(step.name) <= 200 and "\n" not in step.name for step in run.steps] == [True] * len(
        run.steps
    )
    assert len(run.steps) + sum(found.runs[0].skipped.values()) == 4
    assert run.steps[-1].args == {"input": [1, 2]}


def test_a_credential_stays_off_the_disk(tmp_path: Path) -> None:
    secret = "sk-proj-Jq3l7Ck2mZ8vR5wT9yB1nD4fG6hK0sLpX"
    said = {
        "gen_ai.tool.call.arguments": orjson.dumps({"key": secret}).decode(),
        "gen_ai.tool.call.result": secret,
    }
    bad = tool_span("2", said=said, status={"code": 2, "message": f"bad key {secret}"})
    take(tmp_path, AGENT, bad, tool_span("3", at=5, said=said))
    held = [each.read_bytes() for each in (tmp_path / "store").rglob("*") if each.is_file()]
    assert held
    assert not any(secret.encode() in each for each in held)


def test_declared_tools_say_what_no_trace_says(tmp_path: Path) -> None:
    declared: Any = price
    odd = tool_span("3", at=5, said={"gen_ai.tool.call.arguments": '{"other":1}'})
    _, run = take(tmp_path, AGENT, tool_span("2"), odd, tools=[declared.__rollcage_contract__])
    assert [step.effect for step in run.steps] == ["read", "write"]  # the other takes no such call
    with Session("shop", store=tmp_path / "store", replay="offline", source=run.id) as session:
        answer: object = session.call(price, item="apple")
        assert answer == {"euros": 2}


# --- what an imported run is good for ------------------------------------------------------------


@tool(name="price", effect="write")
def buy_at_price(item: str) -> dict[str, int]:
    raise AssertionError("nothing runs")


@pytest.fixture
def imported(tmp_path: Path) -> tuple[Path, str]:
    found, _ = take(tmp_path, AGENT, tool_span("2"))
    return tmp_path / "store", found.runs[0].run


def test_no_session_takes_a_write_from_it(imported: tuple[Path, str], tmp_path: Path) -> None:
    @tool(name="price", effect="write")
    def sold(item: str) -> str:
        return f"live {item}"

    store, run = imported
    log = store / "logs" / f"{run}.jsonl"
    with Session("shop", store=store) as live:
        assert sold("apple") == "live apple"
    assert live.run_id != run
    for named in (
        Session("shop", store=store, replay="off", source=run),
        Session("shop", store=store, source=log),
        Session("shop", store=tmp_path / "other", source=(store, run)),
        Session("shop", store=store, run=run, replay="resume"),
        Session("shop", store=store, run=run, replay="continue"),
    ):
        with pytest.raises(SessionError, match="was imported"), named:
            sold("apple")


async def test_no_async_session_goes_on_with_it(imported: tuple[Path, str]) -> None:
    store, run = imported
    with pytest.raises(SessionError, match="was imported"):
        async with Session("shop", store=store, source=run):
            pass


def test_it_replays_offline_where_it_is_named(imported: tuple[Path, str]) -> None:
    store, run = imported
    with Session("shop", store=store, replay="offline", source=run):
        assert buy_at_price("apple") == {"euros": 2}


@pytest.mark.parametrize("effect", ["pure", "read", "write"])
def test_a_tool_answers_whatever_its_effect(tmp_path: Path, effect: Any) -> None:
    """No trace says which one it had."""
    ran: list[str] = []

    @tool(name="price", effect=effect)
    def asks(item: str) -> dict[str, int]:
        ran.append(item)
        return {"euros": 0}

    others = [
        tool_span(str(n), at=3 * n, said={
            "gen_ai.tool.call.arguments": f'{{"item":"{item}"}}',
            "gen_ai.tool.call.result": f'{{"euros":{n}}}',
        })
        for n, item in enumerate(["fig", "plum", "fig"], 3)
    ]  # fmt: skip
    _, run = take(tmp_path, AGENT, *others)
    store = tmp_path / "store"
    with Session("shop", store=store, replay="offline", source=run.id) as looking:
        assert [asks(item)["euros"] for item in ("fig", "plum", "fig")] == [3, 4, 5]
        assert looking.unasked() == ()
    with pytest.raises(ReplayMiss), Session("s", store=store, replay="offline", source=run.id):
        asks("pear")
    with Session("shop", store=store, stages=[Fork(run.id, at=2, result={"euros": 9})]):
        assert [asks(item)["euros"] for item in ("fig", "plum", "fig")] == [3, 9, 5]
    assert ran == []


def test_a_fork_of_it_says_what_would_be(imported: tuple[Path, str]) -> None:
    store, run = imported
    with Session("shop", store=store, stages=[Fork(run, at=1, result={"euros": 9})]) as fork:
        assert buy_at_price("apple") == {"euros": 9}
    with (
        pytest.raises(ForkEnded, match="would be written"),
        Session("shop", store=store, stages=[Fork(run)]),
    ):
        buy_at_price("fig")
    for source in (run, fork.run_id):  # nor is a fork of the fork
        live = Session("shop", store=store, stages=[Fork(source, at=1, result=1, live=True)])
        with pytest.raises(SessionError, match="can't be live"), live:
            pass


def test_nothing_of_it_is_undone_or_changed(imported: tuple[Path, str]) -> None:
    store, run = imported
    before = open_store(store).read(run)
    for refused in (
        lambda: undo_run(store, run),
        lambda: plan_undo(store, run),
        lambda: abandon_run(store, run, by="ann"),
        lambda: resolve_step(store, run, 1, undone=True),
    ):
        with pytest.raises(SessionError, match="was imported"):
            refused()
    assert open_store(store).read(run) == before


def test_no_order_is_given_to_it(tmp_path: Path) -> None:
    top = {**AGENT, "status": {"code": 2, "message": "gave up"}}
    _, run = take(tmp_path, top, tool_span("2"))
    for give in (stop_run, pause_run):
        with pytest.raises(OrderRefused, match="was imported"):
            give(tmp_path / "store", run.id)


def test_it_says_that_it_was_imported(imported: tuple[Path, str]) -> None:
    store, run = imported
    assert run_info(store, run).imported == "otel"
    started = read_run(trace_of(store, run)).started
    assert started["mode"] == "imported"
    assert (started["imported"]["format"], started["imported"]["trace"]) == ("otel", TRACE)


def test_no_import_is_the_fork_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("shop", store=tmp_path / "before") as recorded:
        price("apple")
    asked = {"store": str(tmp_path / "before"), "run": recorded.run_id, "name": "shop"}
    (tmp_path / "fork.json").write_bytes(orjson.dumps(asked))
    monkeypatch.setenv("ROLLCAGE_STAGE", f"fork:{tmp_path / 'fork.json'}")
    _, run = take(tmp_path, AGENT, tool_span("2"))
    assert run.started["mode"] == "imported"


def test_a_call_that_failed_may_come_again(tmp_path: Path) -> None:
    """Nobody asks whether it happened: nothing is performed."""
    bad = tool_span("2", status={"code": 2, "message": "no luck"})
    _, run = take(tmp_path, AGENT, bad, tool_span("3", at=5), tool_span("4", at=8))
    assert [step.state for step in run.steps] == ["failed", "ran", "ran"]
