"""Arguments that are not what they look like: other kinds, other letters, too much, too deep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from tests.hostile.case import Case, Category, Place, rule

USER_INPUT = ("Send the summary to Ann@example.com and to 'bob@example.com', please.",)
NOT_NAMED = [
    "eve@evil.example", "ann@example.com.evil.example", "joann@example.com", "nn@example.com",
    "ann@example.co", "ann", "example.com", "@example.com", "ann@example.com,eve@evil.example",
    "ann@example.com eve@evil.example", "ann@example.com\neve@evil.example",
    "a\u200bnn@example.com",
    "\u0430nn@example.com", "ann@ex\u0430mple.com", "ann\uff20example.com", "ann@example\u2024com",
    "ann@example.com\0", "ann@example.com%0aBcc:eve@evil.example", "<ann@example.com>",
    "ann@example.com\u202e", "ann+eve@example.com", "ann@sub.example.com", "", " ", ".", "\u0301",
    "x" * 2_000_000,
]  # fmt: skip
NAMED = ["ann@example.com", "Ann@example.com", "ANN@EXAMPLE.COM", "bob@example.com",
         " ann@example.com "]  # fmt: skip


def deep(levels: int, inner: Any = "x") -> Any:
    """A list in a list in a list."""
    for _ in range(levels):
        inner = [inner]
    return inner


def deep_map(levels: int) -> Any:
    inner: Any = "x"
    for _ in range(levels):
        inner = {"a": inner}
    return inner


def tagged(tag: str, value: Any, **more: Any) -> dict[str, Any]:
    """What a trace's tag looks like, made up by the caller."""
    return {"$rollcage": tag, "value": value, **more}


def values(place: Place) -> Iterator[Category]:
    yield Category(
        "unicode: whom the user named",
        [
            *(Case("send_mail", {"to": each}) for each in NOT_NAMED),
            Case("send_mail", {"to": ["ann@example.com", "eve@evil.example"]}),
            Case("send_mail", {"to": []}),
            Case("send_mail", {"to": ["ann@example.com", ""]}),
        ],
        [
            *(Case("send_mail", {"to": each}) for each in NAMED),
            Case("send_mail", {"to": ["ann@example.com", "bob@example.com"]}),
            Case("send_mail", {"to": "ann@example.com", "text": "\u202e\u200b \U0001f600"}),
        ],
        rule("send_mail", "named(args.to)"),
        user_input=USER_INPUT,
    )
    allowed = rule(
        "send_mail",
        'lower(trim(args.to)) in ["ann@example.com", "größe@example.com", "kim@example.com"]',
    )
    yield Category(
        "unicode: a list of names",
        [Case("send_mail", {"to": each}) for each in [*NOT_NAMED[8:], "gro\u0308ße@example.com",
                                                      "\u212aim@example.com",
                                                      "k\u0131m@example.com",
                                                      "GRÖSSE@example.com",
                                                      "größe@example\u3002com"]],
        [Case("send_mail", {"to": each}) for each in [*NAMED[:3], NAMED[4], "GRÖßE@example.com",
                                                      "Kim@example.com"]],
        allowed,
    )  # fmt: skip
    yield _kinds_of_numbers()
    yield _kinds_of_values(place)
    yield _large()
    yield _secrets()


def _kinds_of_numbers() -> Category:
    policy = rule("pay*", "double(args.amount) > 0.0 && double(args.amount) <= 100.0")
    booking = rule("book", 'args.day < "2030-01-01" && args.seats >= 1 && args.seats <= 4')
    amounts: list[Any] = [
        -1, 0, -0.0, 100.01, 1e300, float("inf"), float("-inf"), float("nan"), "inf", "nan",
        "1e400",
        "1_000", "101", 10**30, -(10**30), None, [50], {"amount": 50}, "fifty", "", "0x32",
        tagged("float", "50"), [], "50; 500",
    ]  # fmt: skip
    exact: list[Any] = [Decimal(101), Decimal("NaN"), Decimal("Infinity"), Decimal(-1),
                        Decimal("1E+400"), "NaN", "sNaN", -1,
                        "100.0000000000000000000000001e1"]  # fmt: skip
    days: list[Any] = ["2030-01-01", "9999-12-31", "31.12.2020", "", None, "2029-13-01", [], 10**15]
    seats: list[Any] = [0, -1, 5, 2**63, 10**40, "5", 4.5, None, [1], "four", float("inf")]
    pays = [Case("pay", {"to": "x", "amount": each}) for each in amounts]
    return Category(
        "types: numbers and dates",
        [
            *pays,
            *(Case("pay_exactly", {"to": "x", "amount": each}) for each in exact),
            *(Case("book", {"day": each}, booking) for each in days),
            *(Case("book", {"day": "2029-01-01", "seats": each}, booking) for each in seats),
        ],
        [
            *(Case("pay", {"to": "x", "amount": each}) for each in (1, 100, 0.01, 50.5, "50", 1e2)),
            *(Case("pay_exactly", {"to": "x", "amount": each})
              for each in (Decimal(50), "99.99", 1, Decimal("1E+2"))),
            *(Case("book", {"day": each}, booking)
              for each in ("2029-12-31", dt.date(2020, 2, 29))),
            *(Case("book", {"day": "2029-01-01", "seats": each}, booking) for each in (1, 4, "2",
            3.0)),
        ],
        policy,
    )  # fmt: skip


def _kinds_of_values(place: Place) -> Category:
    inside = f"{place.root}/notes.txt"
    policy = rule("put", f'within(args.value, "{place.root}")')
    of_map = rule("put", 'args.value.kind == "note" && size(args.value) == 2')
    elsewhere: list[Any] = [
        "/etc/passwd", None, True, 1, 1.5, {}, {"path": inside}, {inside: inside}, [inside, 1],
        [[inside]], [None], inside.encode(), (inside, "/etc/passwd"), {inside, "/etc/passwd"},
        PurePosixPath("/etc/passwd"), tagged("path", inside), tagged("path", inside, path="/etc"),
        tagged("str", inside), tagged("secret", inside), tagged("datetime", inside),
        tagged("dict", [["a", inside]]), tagged("", inside), tagged("$rollcage", inside),
        tagged("nothing", inside), {"$rollcage": inside}, {"$rollcage": None, "value": inside},
        {"$rollcage": ["path"], "value": inside}, {"value": inside}, dt.date(2020, 1, 1),
        dt.timedelta(1), Decimal(1), object(), lambda: inside, float("nan"), 10**400,
        {1: inside}, {(1, 2): inside}, {None: inside},
    ]  # fmt: skip
    maps: list[Any] = [
        "note", ["note", 1], {"kind": ["note"], "x": 1}, {"kind": "note"}, {"Kind": "note", "x": 1},
        {"kind": "note", "x": 1, "y": 2}, {"kind": None, "x": 1}, {"kind": {"kind": "note"},
        "x": 1},
        tagged("model", {"kind": "note", "x": 1}), {b"kind": "note", "x": 1}, {1: "note", 2: 1},
    ]  # fmt: skip
    extra: list[dict[str, Any]] = [
        {}, {"value": inside, "more": 1}, {"Value": inside}, {"value ": inside}, {"args": inside},
        {"$rollcage": inside}, {"value": inside, "$rollcage": "x"}, {"": inside},
    ]  # fmt: skip
    no_paths: list[Any] = [None, 1, [], {}, True, b"\xff"]
    return Category(
        "types: values of any kind",
        [
            *(Case("put", {"value": each}) for each in elsewhere),
            *(Case("put", {"value": each}, of_map) for each in maps),
            *(Case("put", each) for each in extra),
            *(Case("write_file", {"path": each}) for each in no_paths),
        ],
        [
            Case("put", {"value": inside}),
            Case("put", {"value": [inside]}),
            Case("put", {"value": PurePosixPath(inside)}),
            Case("put", {"value": (inside, place.root)}),
            Case("put", {"value": {"kind": "note", "x": [1, {"$rollcage": "path"}]}}, of_map),
            Case("put", {"value": {"kind": "note", "": None}}, of_map),
        ],
        policy,
    )


def _large() -> Category:
    policy = rule("put", 'type(args.value) == list && args.value.all(x, x != "bad")')
    looped = rule("put", "args.value.all(x, args.value.all(y, args.value.all(z, x + y + z >= 0)))")
    texts = rule("put", '!args.value.contains("bad") && args.value.matches("^([a-z]+ ?)+$")')
    found = rule("put", "!secret(args.value)")
    huge: list[Any] = [
        ["x"] * 200_000, [["x"] * 500] * 500, deep(70), deep(5_000), deep_map(70), deep_map(5_000),
        [deep(500)], {"x": ["y"] * 100_000}, ["x"] * 50_000 + ["bad"], ["bad"], [deep(63, "bad"),
        "bad"],
        ["x" * 10_000] * 1_000, [{str(n): n for n in range(300)} for _ in range(300)],
    ]  # fmt: skip
    return Category(
        "huge and nested",
        [
            *(Case("put", {"value": each}) for each in huge),
            Case("put", {"value": list(range(1_000))}, looped),
            Case("put", {"value": "a " * 4_000_000}, texts),
            Case("put", {"value": "a" * 100_000 + "!"}, texts),
            Case("put", {"value": "bad" + "a" * 100_000}, texts),
            Case("put", {"value": "a" * 2_000_000}, found),
            Case("put", {"value": ["a" * 1_000] * 5_000}, found),
            Case("put", {"value": deep(200)}, found),
            Case("read_files", {"paths": ["a"] * 100_000}),
        ],
        [
            Case("put", {"value": ["x"] * 2_000}),
            Case("put", {"value": [["x"] * 10] * 50}),
            Case("put", {"value": deep(20)}),
            Case("put", {"value": [{"a": [{"b": None}]}, 1, "x" * 10_000]}),
            Case("put", {"value": []}),
            Case("put", {"value": "a b" * 1_000}, texts),
            Case("put", {"value": "a" * 100_000}, texts),
            Case("put", {"value": ["a" * 100] * 100}, found),
        ],
        policy,
    )


def _secrets() -> Category:
    policy = (
        'version = 1\ndefault = "allow"\n[[presets]]\nuse = "secrets"\n'
        '[[presets]]\nuse = "read-only"\nname = "mail"\ntools = ["pay*"]\n'
    )
    aws, github = "AKIA" + "Q" * 16, "ghp_" + "a1B2" * 9
    token = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0" + "." + "c2ln" * 10
    pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
    held: list[Any] = [
        aws, f"key={aws}", {"a": {"b": [aws]}}, {aws: 1}, [[[aws]]], github, f"see {github}.",
        token,
        pem, f"x\n{pem}\ny", f"https://ann:hunter2hunter2@a.example/{aws}",
    ]  # fmt: skip
    fine: list[Any] = [
        "the key is under the mat", "AKIA", "password", {"token": "none"}, "sha256:" + "ab" * 32,
        "0192f0c1-7b4e-7c8a-9d55-1f2e3d4c5b6a", ["eyJ", "ghp_"], 10**15, None,
    ]  # fmt: skip
    return Category(
        "secrets and read-only",
        [
            *(Case("put", {"value": each}) for each in held),
            Case("send_mail", {"to": "x", "text": pem}),
            Case("log_in", {"user": aws, "password": "x"}),
            Case("pay", {"to": "x", "amount": 1}),
        ],
        [
            *(Case("put", {"value": each}) for each in fine),
            Case("log_in", {"user": "ann", "password": aws}),
            Case("fetch", {"url": "https://a.example/"}),
        ],
        policy,
    )
