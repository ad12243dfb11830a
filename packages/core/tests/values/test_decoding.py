"""A trace is hostile input: decoding gives a value or a ValueError, and nothing else happens."""

import collections
import datetime as dt
import ipaddress
import sys
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollcage.values import decoding
from rollcage.values.codec import TAG
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception

hostile_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=8),
    st.sampled_from(["1e999999999", "0x" + "f" * 50, "9" * 5000, "nan", "2020-01-01", "AAAA"]),
)  # fmt: skip
TAGS = [
    "int", "float", "str", "dict", "tuple", "set", "frozenset", "datetime", "date", "time",
    "timedelta", "bytes", "bytearray", "decimal", "uuid", "complex", "path", "purepath", "enum",
    "subclass", "model", "dataclass", "url", "native", "secret", "redacted", "opaque", "blob", "no",
    "deque", "ordereddict", "defaultdict", "counter", "fraction", "address", "namespace", "range",
    "numpy", "pandas",
]  # fmt: skip
hostile = st.recursive(
    hostile_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from([TAG, "value", "type", "a"]), inner, max_size=4),
        st.fixed_dictionaries(
            {TAG: st.sampled_from(TAGS) | inner, "value": inner}, optional={"type": inner}
        ),
    ),
    max_leaves=12,
)


BUILTINS = [
    "ValueError", "OSError", "UnicodeDecodeError", "KeyError", "ExceptionGroup", "SyntaxError",
    "StopIteration", "BaseException", "SystemExit", "rollcage.errors.Blocked", "os.system",
    "rollcage.errors.UnknownOutcome", "ImportError", "MemoryError", "eval",
]  # fmt: skip
HARMLESS = (
    type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, complex,
    Decimal, UUID, dt.datetime, dt.date, dt.time, dt.timedelta, Path, PurePosixPath,
    PureWindowsPath, collections.deque, Fraction, types.SimpleNamespace, range,
    ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
)  # fmt: skip


@settings(max_examples=5 * settings().max_examples)
@given(hostile)
def test_decoding_anything_gives_a_value_or_a_value_error(data: Any) -> None:
    data = orjson.loads(orjson.dumps(data))
    decode({TAG: "datetime", "value": ["2024-01-02T00:00:00", "UTC", 0]})  # zoneinfo is loaded
    before = set(sys.modules)
    try:
        value = decode(data)
    except ValueError:
        value = None
    assert isinstance(value, HARMLESS)
    assert set(sys.modules) == before


@settings(max_examples=5 * settings().max_examples)
@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(BUILTINS) | st.text(max_size=5), "message": st.text() | hostile},
        optional={
            "args": st.lists(hostile),
            "state": hostile,
            "notes": st.lists(hostile),
            "x": hostile,
        },
    )
    | hostile
)
def test_decoding_any_error_gives_an_exception_or_a_value_error(data: Any) -> None:
    data = orjson.loads(orjson.dumps(data))
    decode({TAG: "datetime", "value": ["2024-01-02T00:00:00", "UTC", 0]})
    before = set(sys.modules)
    try:
        error = decode_exception(data, [UnicodeDecodeError, KeyError])
    except ValueError:
        pass
    else:
        assert type(error).__module__ in ("builtins", "rollcage.errors")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "zone",
    ["../../etc/passwd", "/etc/localtime", "America", "", "a\0", "x" * 5000, "os/path", 5, [], {}],
)
def test_a_zone_that_the_trace_names_opens_no_file_and_imports_nothing(zone: Any) -> None:
    with pytest.raises(ValueError, match="not a datetime"):
        decode({TAG: "datetime", "value": ["2024-01-02T00:00:00", zone, 0]})


@pytest.mark.parametrize("tag", ["tuple", "set", "enum", "model", "native", "frozenset"])
def test_deep_nesting_is_a_value_error_and_no_crash(tag: str) -> None:
    data: Any = 1
    for _ in range(100_000):
        data = {TAG: tag, "value": {"a": data} if tag == "model" else [data]}
    with pytest.raises(ValueError, match="nested too deep"):
        decode(data)
    plain: Any = []
    for _ in range(100_000):
        plain = [plain]
    for odd in (plain, {TAG: plain}, {TAG: "opaque", "type": plain}):
        with pytest.raises(ValueError, match="nested too deep"):
            decode(odd)


@pytest.mark.parametrize(
    "data",
    [
        {TAG: "int", "value": "9" * 10_000_000},
        {TAG: "decimal", "value": ["9" * 1000] * 1000},
        {TAG: "timedelta", "value": [1e300]},
        {TAG: "date", "value": "99999-01-01"},
        {TAG: "bytes", "value": "A" * 10_000_001},
        {TAG: "uuid", "value": 5},
        {TAG: "set", "value": [[]]},
        {TAG: "dict", "value": [[{TAG: "dict", "value": []}, 1]]},
        {TAG: "model", "value": []},
        {TAG: "blob", "sha256": "0" * 64, "value": None},
        {TAG: "python", "value": "os.system('true')"},
        {TAG: ["int"], "value": "1"},
        {TAG: None},
        {TAG: "x" * 10_000_000},
    ],
)
def test_an_encoding_that_is_none_of_ours_is_a_short_value_error(data: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any words, but few
        decode(data)
    assert len(str(caught.value)) < 500


def test_what_stands_for_a_value_names_no_type_to_run() -> None:
    named = {"type": "builtins.eval", "value": {"a": "1"}}
    assert decode({TAG: "model", **named}) == {"a": "1"}
    assert decode({TAG: "dataclass", **named}) == {"a": "1"}
    assert decode({TAG: "enum", "type": "os.system", "value": "true"}) == "true"
    assert decode({TAG: "subclass", "type": "os.system", "value": "true"}) == "true"
    assert decode({TAG: "opaque", "type": "os.system"}) == "<os.system, not recorded>"
    assert decode({TAG: "secret", "value": "sealed"}) == "<secret>"
    assert decode({TAG: "redacted"}) == "<redacted>"


def test_the_tests_look_at_every_tag() -> None:
    assert set(TAGS) - {"blob", "no"} == decoding._DECODERS.keys()
