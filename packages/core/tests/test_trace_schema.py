"""The published schema is the one that traces are written to and checked by."""

import ast
import contextlib
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from rollcage import (
    Approval,
    Blocked,
    NotReplayable,
    NotReplayableWarning,
    PolicyInvalid,
    RunStopped,
    StepView,
    Verdict,
    compensate,
    tool,
)
from rollcage.session.abandon import abandon_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder
from rollcage.trace import FORMAT, LOG_FORMAT, check_events, constructors, json_schema
from rollcage_policy import Policy

PUBLISHED = Path(__file__).parents[3] / "docs" / "schema" / "trace-event.schema.json"
WRITE_IT = (
    "python -c 'import json, rollcage.trace as t; print(json.dumps(t.json_schema(), indent=2))' "
    "> docs/schema/trace-event.schema.json"
)
OF_LOGS = PUBLISHED.with_name("log-line.schema.json")
WRITE_OF_LOGS = WRITE_IT.replace("t.json_schema()", "t.json_schema(t.LOG_FORMAT)").replace(
    PUBLISHED.name, OF_LOGS.name
)


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema.Draft202012Validator(orjson.loads(PUBLISHED.read_bytes()))


def test_the_published_schema_is_the_models_own() -> None:
    assert orjson.loads(PUBLISHED.read_bytes()) == json_schema(), f"to write it anew: {WRITE_IT}"


def test_the_published_schema_of_logs_is_the_models_own() -> None:
    published = orjson.loads(OF_LOGS.read_bytes())
    assert published == json_schema(LOG_FORMAT), f"to write it anew: {WRITE_OF_LOGS}"


def test_the_docs_say_how_it_is_written() -> None:
    text = (PUBLISHED.parent / "README.md").read_text(encoding="utf-8")
    assert WRITE_IT in text
    assert WRITE_OF_LOGS in text


@pytest.mark.parametrize(("path", "format_"), [(PUBLISHED, FORMAT), (OF_LOGS, LOG_FORMAT)])
def test_the_published_schema_is_valid_itself(path: Path, format_: str) -> None:
    schema = orjson.loads(path.read_bytes())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert format_ in schema["title"]


@tool(effect="write", raises=[ConnectionError])
def write(what: str, how: Any = None) -> Any:
    if what == "fail":
        raise ConnectionRefusedError(what)
    if what == "opaque":
        return object()
    return {what, "x" * 70_000} if what == "large" else how


@tool(effect="read")
def look(at: str) -> str:
    return at


@tool(effect="scope")
def plan(steps: int) -> str:
    return "".join(str(write(str(i))) for i in range(steps))


def no_etc(step: StepView) -> Verdict | None:
    return Verdict.deny("not there") if step.args.get("what") == "/etc" else None


def under_policies(store: Path) -> None:
    """Sessions that ask, take another policy, and only try one out."""
    policy = Policy.parse('version = 1\ndefault = "ask"\nmode = "enforce"\n')
    with Session(
        "asked", store=store, policy=policy, approver=lambda _: Approval(True, "ann")
    ) as session:
        session.call(look, at="b")
        session.load_policy(policy)
        with pytest.raises(PolicyInvalid):
            session.load_policy(store / "no.toml")
    shadow = Policy.parse('version = 1\nmode = "shadow"\n')
    with Session("shadow", store=store, policy=shadow) as session:
        session.call(look, at="b")
        session.refused("loook", {"at": "b"})


def every_kind_of_line(store: Path) -> list[dict[str, Any]]:
    """Sessions that write, fail, block, nest, branch, crash, replay, resume and compare."""

    def work(session: Session) -> None:
        session.call(write, what="a", how={1: b"b"})
        with session.turn(), session.place(agent="ann", call_id="call_1"):
            session.call(look, at="b")
        with pytest.raises(ConnectionError):
            session.call(write, what="fail")
        with pytest.raises(Blocked):
            session.call(write, what="/etc")
        session.call(plan, steps=2)
        with session.branch("left") as left:
            left.call(write, what="large")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotReplayableWarning)
            session.call(write, what="opaque")

    modes: list[Any] = ["off", "offline", "verify"]
    for replay in modes:
        # What can't be replayed ends the later ones: the lines up to there, and its own, count.
        expected = contextlib.nullcontext() if replay == "off" else pytest.raises(NotReplayable)
        with expected, Session("job", store=store, replay=replay, rules=[no_etc]) as session:
            work(session)
    with pytest.raises(KeyError), Session("crash", store=store) as session:
        session.call(write, what="a")
        session.call(write, what="b")
        raise KeyError
    with Session("crash", store=store, on_divergence="warn") as session:
        session.call(look, at="new")
        session.call(write, what="c")
    with pytest.raises(KeyboardInterrupt), Session("cut", store=store) as session:

        def cut() -> None:
            raise KeyboardInterrupt

        session.call(cut)
    with Session("undone", store=store) as session:
        box: dict[str, str] = {}

        @tool(effect="write", name="schema.take")
        def take(what: str) -> None:
            del box[what]

        @tool(
            effect="write",
            name="schema.put",
            observe=lambda args: {"box": dict(box), "size": len(box)},
            undo=lambda args: [compensate(take, what=args["what"])],
        )
        def put(what: str) -> None:
            box[what] = what

        put("a")
        assert session.undo().complete
        with pytest.raises(KeyError), session.transaction():
            put("b")
            raise KeyError
    files = JsonlStore(store)
    with pytest.raises(RunStopped), Session("stopped", store=store) as session:
        files.stop(StopOrder(session.run_id, "ann", "enough", 1))
        session.call(look, at="b")
    with Session("set aside", store=store, input={"order": 7}) as session:
        session.pause("ann is to answer")
    abandon_run(store, session.run_id, by="ann")
    under_policies(store)
    lines = [files.read(info.run).data.splitlines() for info in files.runs()]
    return [orjson.loads(line) for each in lines for line in each]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return every_kind_of_line(tmp_path_factory.mktemp("store"))


def test_every_line_that_is_written_passes_the_published_schema(
    lines: list[dict[str, Any]], validator: Any
) -> None:
    for line in lines:
        validator.validate(line)
    kinds = {line["event"] for line in lines}
    assert kinds >= {
        "run.started", "step.started", "step.finished", "step.replayed", "step.blocked",
        "branch.joined", "run.finished",
    }  # fmt: skip
    statuses = {line["outcome"]["status"] for line in lines if "outcome" in line}
    assert statuses >= {"ok", "error", "unknown"}


def test_the_schema_refuses_what_is_no_event(lines: list[dict[str, Any]], validator: Any) -> None:
    for line in {line["event"]: line for line in lines}.values():
        wrong = [
            {**line, "more": 1},
            {**line, "hash": "0"},
            {**line, "time": -1},
            {**line, "event": "step.undone"},
            {name: value for name, value in line.items() if name != "time"},
        ]
        assert [validator.is_valid(each) for each in wrong] == [False] * len(wrong)


def test_every_event_of_the_schema_is_written_by_somebody(lines: list[dict[str, Any]]) -> None:
    known = json_schema()["discriminator"]["mapping"].keys()
    by_an_operator = {"step.resolved"}
    assert known - {line["event"] for line in lines} == by_an_operator


# --- built in one place --------------------------------------------------------------------------


def test_each_event_has_one_constructor_of_the_name_of_its_model() -> None:
    names = {name.replace(".", "_") for name in events_of(json_schema())}
    assert names | {"Event", "requested"} == {*constructors.__all__}


def test_no_event_is_built_anywhere_else() -> None:
    sources = Path(__file__).parents[3]
    wrong: list[str] = []
    for path in [
        *sources.glob("packages/*/src/**/*.py"),
        *sources.glob("integrations/*/src/**/*.py"),
    ]:
        if path.name == "constructors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                said = [v.value for v in node.values if isinstance(v, ast.Constant)]
                if "event" in keys and any(each in EVENTS for each in said):
                    wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def events_of(schema: Any) -> set[str]:
    """The names of the events that a schema has."""
    return {*schema["discriminator"]["mapping"]}


EVENTS = events_of(json_schema())


@pytest.mark.parametrize("levels", [50, 199, 201, 250])
def test_a_value_that_is_nested_deep_is_whole(tmp_path: Path, levels: int) -> None:
    """What may be recorded passes the check: the schema says nothing of the insides of values."""
    deep: Any = 0
    for _ in range(levels):
        deep = [deep]

    @tool(effect="write", name="schema.deep")
    def put(x: object) -> object:
        return {"x": x}

    store = JsonlStore(tmp_path)
    with Session("deep", store=store) as session:
        put(deep)
    found = store.read(session.run_id)
    assert len(check_events(found.data, found.where)) == 4
