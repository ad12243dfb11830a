"""What is counted, and that a replay counts nothing twice; every name is on one list."""

import re
from pathlib import Path
from typing import Any

import pytest
import rollcage_otel
from opentelemetry.metrics import get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rollcage import (
    Approval,
    Blocked,
    Session,
    StepView,
    Store,
    Verdict,
    compensate,
    tool,
    undo_run,
)
from rollcage_adapter import Answer, model_contract
from rollcage_otel import Spans, names


@tool(name="counted.take")
def take(thing: str) -> None:
    pass


@tool(name="counted.put", undo=lambda args: [compensate("counted.take", **args)])
def put(thing: str) -> str:
    return thing


@tool(name="counted.wipe")
def wipe() -> None:
    pass


def rule(step: StepView) -> Verdict | None:
    if step.name == "counted.wipe":
        return Verdict.deny("no")
    return Verdict.ask("sure?") if step.name == "counted.put" else None


def job(session: Session) -> None:
    put("a")
    session.run_call(
        model_contract("gpt", "test"), {"messages": []}, lambda **_: "hello", kind="model",
        answer=lambda value: Answer(text=value, usage={"input_tokens": 3, "output_tokens": 4}),
    )  # fmt: skip


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    data: Any = reader.get_metrics_data()
    metrics = [each for one in data.resource_metrics for each in one.scope_metrics]
    assert {each.schema_url for each in metrics} == {names.SCHEMA_URL}
    return {
        metric.name: [
            (dict(point.attributes), getattr(point, "value", getattr(point, "count", None)))
            for point in metric.data.data_points
        ]
        for scope in metrics
        for metric in scope.metrics
    }


def test_steps_waits_undos_and_what_replay_saved(store: Store) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    spans = Spans(meter_provider=provider)
    options: dict[str, Any] = {
        "store": store,
        "gate": [rule],
        "approver": lambda request: Approval(True, by="ann"),
        "observers": [spans],
    }
    with Session("job", **options) as session:
        job(session)
        with pytest.raises(Blocked):
            wipe()
    recorded = session.run_id
    with Session("job", replay="offline", **options) as session:
        job(session)
    undo_run(store, recorded, observers=[spans])
    found = points(reader)
    seconds = found.pop(names.SECONDS_SAVED)
    assert seconds[0][1] > 0
    steps = {tuple(sorted(each.values())): count for each, count in found.pop(names.STEPS)}
    assert steps == {
        ("ran", "tool", "write"): 2,
        ("blocked", "tool", "write"): 1,
        ("hit", "tool", "write"): 1,
        ("model", "model", "ran"): 1,
        ("hit", "model", "model"): 1,
    }
    assert found == {
        names.APPROVAL_WAIT: [({names.TOOL_NAME: "counted.put", names.STATE: "approved"}, 1)],
        names.TOOL_DURATION: [
            ({names.TOOL_NAME: "counted.put"}, 1),
            ({names.TOOL_NAME: "counted.take"}, 1),
        ],
        names.UNDONE_STEPS: [({names.UNDO_STATUS: "compensated"}, 1)],
        names.TOKENS_SAVED: [({}, 7)],
    }
    provider.shutdown()
    assert get_meter_provider() is not provider


def test_every_name_is_on_one_list() -> None:
    """A literal of the conventions stands in `names.py`, and nowhere else."""
    folder = Path(rollcage_otel.__file__).parent
    literal = re.compile(r'"((?:gen_ai|rollcage|error)\.[a-z_.]+)"')
    found = {path.name: literal.findall(path.read_text()) for path in folder.glob("*.py")}
    assert [name for name, each in found.items() if each and name != "names.py"] == []
    assert sorted(found["names.py"]) == [
        "error.type", "gen_ai.agent.name", "gen_ai.conversation.id", "gen_ai.execute_tool.duration",
        "gen_ai.input.messages", "gen_ai.operation.name", "gen_ai.output.messages",
        "gen_ai.request.model", "gen_ai.tool.call.arguments", "gen_ai.tool.call.id",
        "gen_ai.tool.call.result", "gen_ai.tool.name", "gen_ai.tool.type",
        "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "rollcage.approval.by",
        "rollcage.approval.id", "rollcage.approval.wait", "rollcage.origin.run",
        "rollcage.origin.step", "rollcage.replay.seconds_saved", "rollcage.replay.tokens_saved",
        "rollcage.run.attempt",
        "rollcage.run.id", "rollcage.run.mode", "rollcage.run.root", "rollcage.run.source",
        "rollcage.run.status", "rollcage.step", "rollcage.step.branch",
        "rollcage.step.effect", "rollcage.step.fingerprint", "rollcage.step.kind",
        "rollcage.step.simulated", "rollcage.step.state",
        "rollcage.steps",
        "rollcage.undo.status", "rollcage.undo.steps", "rollcage.verdict.code",
        "rollcage.verdict.decision", "rollcage.verdict.rule",
    ]  # fmt: skip
    assert names.SCHEMA_URL == "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
