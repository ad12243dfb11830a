"""The published schema of logs is the models' own, and what they refuse it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pydantic
import pytest
from rollcage import Session, Store, TraceCorrupt, tool
from rollcage.trace import FORMAT, check_events, event_adapter, json_schema
from rollcage.trace.chain import chained
from rollcage.trace.log_models import OutcomeLine, StepLine
from rollcage.trace.run import _KNOWN as KNOWN

Events = Callable[[str], list[dict[str, Any]]]
PUBLISHED = Path(__file__).parents[4] / "docs" / "schema" / "log-line.schema.json"
WRITE_IT = (
    "python -c 'import json, rollcage.trace as t; print(json.dumps(t.json_schema(), indent=2))'"
    " > docs/schema/log-line.schema.json"
)


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema.Draft202012Validator(orjson.loads(PUBLISHED.read_bytes()))


def test_the_published_schema_is_the_models_own() -> None:
    published = orjson.loads(PUBLISHED.read_bytes())
    assert published == json_schema(), f"to write it anew: {WRITE_IT}"
    assert FORMAT in published["title"]


def test_the_docs_say_how_it_is_written() -> None:
    assert WRITE_IT in (PUBLISHED.parent / "README.md").read_text(encoding="utf-8")


def test_the_schema_is_valid_itself(validator: Any) -> None:
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(validator.schema)


@pytest.mark.parametrize("levels", [50, 199, 201, 250])
def test_a_value_of_any_depth_is_whole(
    store: Store, events: Events, validator: Any, levels: int
) -> None:
    """The schema says nothing of the insides of values."""
    deep: Any = 0
    for _ in range(levels):
        deep = [deep]

    @tool(effect="write", name="schema.deep")
    def put(x: object) -> object:
        return {"x": x}

    with Session("deep", store=store) as session:
        put(deep)
    lines = events(session.run_id)
    assert [line["event"] for line in lines] == ["run", "attempt", "step", "outcome", "ended"]
    for line in lines:
        validator.validate(line)


@pytest.mark.parametrize("more", [{"replayed": [["x"]]}, {"replayed": {}}, {"slot": []}])
def test_a_deep_line_is_checked_as_well(store: Store, events: Events, more: dict[str, Any]) -> None:
    deep: Any = 0
    for _ in range(250):
        deep = [deep]

    @tool(effect="write", name="schema.deeply")
    def put(x: object) -> None: ...

    with Session("deep", store=store) as session:
        put(deep)
    plain = [{k: v for k, v in each.items() if k != "hash"} for each in events(session.run_id)]
    lines = [{**each, **more} if each["event"] == "step" else each for each in plain]
    with pytest.raises(TraceCorrupt, match=next(iter(more))) as damage:
        check_events(b"".join(chained(lines)), "it")
    assert damage.value.line == 3
    check_events(b"".join(chained(plain)), "it")


def test_it_refuses_what_is_no_line(store: Store, events: Events, validator: Any) -> None:
    @tool(effect="write", name="schema.put")
    def put() -> None: ...

    with Session("job", store=store) as session:
        put()
    for line in events(session.run_id):
        for wrong in ({**line, "more": 1}, {**line, "hash": "0"}, {**line, "event": "done"}):
            assert not validator.is_valid(wrong), wrong


def test_published_schemas_say_what_models_do(store: Store, events: Events, validator: Any) -> None:
    @tool(effect="write", name="schema.note")
    def note(text: str) -> str:
        return text

    with Session("job", store=store) as session:
        note("a")
    good = events(session.run_id)
    validate = event_adapter().validate_json
    bad = [
        {**good[2], "step": 0},
        {**good[2], "fingerprint": "a"},
        {**good[2], "pos": -1},
        {**good[2], "effect": "wish"},
        {**good[2], "more": 1},
        {**good[2], "event": "more"},
        {**good[3], "outcome": {"status": "unknown"}},
        {name: value for name, value in good[2].items() if name != "turn"},
    ]
    own = [
        {**good[2], "acme.budget": 5},
        {"event": "acme.spent", "hash": good[0]["hash"], "a.b": 1},
    ]
    for event in good + own:
        validator.validate(event)
        validate(orjson.dumps(event))
    for event in bad:
        assert not validator.is_valid(event), event
        with pytest.raises(pydantic.ValidationError):
            validate(orjson.dumps(event))


MARKS = {"approval", "assumed", "gate", "labels", "memory", "undeclared"}
"""Fields of a step's lines that stages write; core writes each of the others."""


def test_a_field_is_of_the_fold_or_of_a_stage() -> None:
    models = (StepLine, OutcomeLine)
    named = {f.alias or name for each in models for name, f in each.model_fields.items()}
    assert named == KNOWN | MARKS
    assert not KNOWN & MARKS
