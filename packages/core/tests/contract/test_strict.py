"""`strict` on a tool, a session or a guard refuses what would have to be coerced."""

import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from rollcage import Contract, Guard, Options, Session, Store, compensate, tool
from rollcage.errors import ArgumentsInvalid
from rollcage.trace import decode

Events = Callable[[str], list[dict[str, Any]]]


class Colour(enum.Enum):
    RED = "red"


class Box(BaseModel):
    width: int
    colour: Colour = Colour.RED


def pack(
    count: int,
    ratio: float = 1.0,
    fast: bool = False,  # noqa: FBT002 - what a model may pass
    box: Box | None = None,
    when: dt.datetime | None = None,
    at: Path | None = None,
    price: Decimal | None = None,
    pair: tuple[int, str] | None = None,
    tags: set[str] | None = None,
    colour: Colour | None = None,
    data: bytes | None = None,
) -> str:
    """Pack."""
    return repr((count, ratio, fast, box))


LAX = tool(name="strict.pack", effect="read")(pack)
STRICT = tool(name="strict.pack", effect="read", strict=True)(pack)

STRICTLY = Options(strict=True)


class Strictly(Guard):
    strict = True


COERCED: list[tuple[dict[str, Any], str]] = [
    ({"count": "3"}, "strict.pack: count: a value of type str was given, int is wanted"),
    ({"count": 3.0}, "count: a value of type float was given, int is wanted"),
    ({"count": True}, "count: a value of type bool was given, int is wanted"),
    ({"count": 1, "fast": "yes"}, "fast: a value of type str was given, bool is wanted"),
    ({"count": 1, "fast": 1}, "fast: a value of type int was given, bool is wanted"),
    ({"count": 1, "ratio": "2"}, "ratio: a value of type str was given, float is wanted"),
    ({"count": 1, "box": {"width": "4"}}, "box.width: a value of type str was given"),
    ({"count": 1, "pair": ["1", "b"]}, "pair.0: a value of type str was given"),
]
FITTING: list[dict[str, Any]] = [
    {"count": 3, "ratio": 2, "fast": True},
    {"count": 3, "box": {"width": 4, "colour": "red"}},
    {"count": 3, "box": Box(width=4)},
    {"count": 3, "when": "2026-01-01T12:00:00Z", "at": "/tmp", "price": "1.50"},  # noqa: S108
    {"count": 3, "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "at": Path(), "price": Decimal(1)},
    {"count": 3, "pair": [1, "b"], "tags": ["a"], "colour": "red", "data": "a"},
    {"count": 3, "pair": (1, "b"), "tags": {"a"}, "colour": Colour.RED, "data": b"a"},
]


@pytest.mark.parametrize(("arguments", "said"), COERCED)
@pytest.mark.parametrize("where", ["tool", "session", "guard"])
def test_what_would_have_to_be_coerced_is_refused(
    store: Store, events: Events, where: str, arguments: dict[str, Any], said: str
) -> None:
    how: dict[str, Any] = {"session": {"options": STRICTLY}, "guard": {"gate": [Strictly()]}}
    settings: Any = how.get(where, {})
    function = STRICT if where == "tool" else LAX
    with Session("job", store=store, **settings) as session:
        with pytest.raises(ArgumentsInvalid) as refused:
            session.call(function, **arguments)
        assert session.stats.refused == 1
        assert session.stats.calls == 0
    assert said in str(refused.value)
    assert "strict: nothing is coerced" in str(refused.value)
    (line,) = [e for e in events(session.run_id) if e["event"] == "refused"]
    assert {name: decode(each) for name, each in line["args"].items()} == arguments
    with Session("lax", store=store) as session:
        session.call(LAX, **arguments)
        assert session.stats.calls == 1


@pytest.mark.parametrize("is_own_run", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outer", [False, True])
def test_a_session_inside_of_a_strict_one_is_strict(
    tmp_path: Path, *, outer: bool, inner: bool, is_own_run: bool
) -> None:
    there = tmp_path / ("other" if is_own_run else "store")
    with (
        Session("job", store=tmp_path / "store", options=Options(strict=outer)),
        Session("inner", store=there, options=Options(strict=inner)) as session,
    ):
        if outer or inner:
            with pytest.raises(ArgumentsInvalid):
                session.call(LAX, count="3")
        else:
            session.call(LAX, count="3")
        assert session.call(LAX, count=3)


@pytest.mark.parametrize("arguments", FITTING)
def test_what_is_of_its_type_in_python_or_json_passes_with_the_same_key(
    store: Store, events: Events, arguments: dict[str, Any]
) -> None:
    keys = []
    for strict in (False, True):
        with Session("job", store=store, options=Options(strict=strict), replay="off") as session:
            session.call(LAX, **arguments)
        keys.append([e["key"] for e in events(session.run_id) if "key" in e])
    assert keys[0] == keys[1]


def test_a_json_schema(store: Store) -> None:
    schema = {
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": ["number", "null"]},
            "any": {},
            "odd": {"type": "frobnicate"},
        }
    }
    contract = Contract(name="t", parameters=schema, strict=True, effect="read")
    with Session("job", store=store) as session:
        for good in ({"n": 1, "x": None}, {"n": 1.0, "x": 2.5}, {"any": "a", "odd": 1}):
            session.run_call(contract, good, lambda **_: None)
        for bad, said in (
            ({"n": "1"}, "n: a value of type str was given, integer is wanted"),
            ({"n": True}, "n: a value of type bool was given"),
            ({"x": "1"}, "x: a value of type str was given, number or null is wanted"),
        ):
            with pytest.raises(ArgumentsInvalid, match=said):
                session.run_call(contract, bad, lambda **_: None)


def test_a_secret_is_not_told(store: Store) -> None:
    @tool(effect="read", strict=True, secret=["pin"])
    def unlock(pin: list[int], key: SecretStr) -> None: ...

    with Session("job", store=store) as session:
        unlock(pin=[1], key="k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid) as refused:
            unlock(pin=["777000777000"], key="k")  # type: ignore[list-item, arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert "777000777000" not in str(refused.value)
    assert b"777000777000" not in b"".join(store.read(session.run_id))


def test_what_takes_a_step_back_is_not_the_agents(store: Store) -> None:
    gone: list[Any] = []

    @tool(effect="write")
    def drop(when: dt.date, tags: set[str]) -> None:
        gone.append((when, tags))

    @tool(effect="write", undo=lambda args: [compensate(drop, when=args["when"], tags={"a"})])
    def put(when: dt.date) -> None: ...

    with Session("job", store=store, options=STRICTLY) as session:
        put(dt.date(2026, 1, 1))
        assert session.undo().complete
    assert gone == [(dt.date(2026, 1, 1), {"a"})]
