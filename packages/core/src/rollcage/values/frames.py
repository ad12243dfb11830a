"""Encode values of pandas, and decode them: each column's values and dtype, without pickle."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Mapping
from typing import Any, Final

from rollcage.values.forms import Back, Form, Inner, Unfit

__all__ = ["form_of", "make"]

_UNITS: Final = ("s", "ms", "us", "ns")


def form_of(kind: type[Any]) -> Form | None:
    """Return the form of a pandas class; None for a class without one."""
    import pandas as pd

    known = (pd.DataFrame, pd.Series, pd.Timestamp, pd.Timedelta, type(pd.NaT), type(pd.NA))
    return _FORM if kind in known or issubclass(kind, pd.Index) else None


def _take(value: Any, inner: Inner) -> dict[str, Any]:
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        labels = [inner(each, ".<column>") for each in value.columns]
        columns = [_column(value.iloc[:, at].array, inner) for at in range(len(labels))]
        pairs = [list(pair) for pair in zip(labels, columns, strict=True)]
        parts = {
            "columns": _index(value.columns, inner),
            "index": _index(value.index, inner),
            "data": {"$rollcage": "dict", "value": pairs},
            **_attrs(value, inner),
        }
        return {"type": "frame", "value": parts}
    if isinstance(value, pd.Series):
        parts = {
            "name": inner(value.name, ".name"),
            "index": _index(value.index, inner),
            "data": _column(value.array, inner),
            **_attrs(value, inner),
        }
        return {"type": "series", "value": parts}
    if isinstance(value, pd.Index):
        return {"type": "index", "value": _index(value, inner)}
    if value is pd.NaT or value is pd.NA:
        return {"type": "missing", "value": "NaT" if value is pd.NaT else "NA"}
    span = isinstance(value, pd.Timedelta)
    at = inner(int(value.asm8.astype("int64")), "")
    zone = None if span else _zone_name(value.tzinfo)
    parts = {"unit": value.unit, "zone": zone, "at": at}
    return {"type": "timedelta" if span else "timestamp", "value": parts}


def _attrs(value: Any, inner: Inner) -> dict[str, Any]:
    return {"attrs": inner(dict(value.attrs), ".attrs")} if value.attrs else {}


def _index(index: Any, inner: Inner) -> dict[str, Any]:
    import pandas as pd

    if isinstance(index, pd.MultiIndex):
        return {
            "kind": "multi",
            "names": [inner(name, ".name") for name in index.names],
            "levels": [_index(level, inner) for level in index.levels],
            "value": [inner(codes, "") for codes in index.codes],
        }
    name = inner(index.name, ".name")
    if isinstance(index, pd.RangeIndex):
        return {"kind": "range", "name": name, "value": [index.start, index.stop, index.step]}
    held = {"kind": "index", "name": name, "value": _column(index.array, inner)}
    return {**held, "freq": index.freqstr} if getattr(index, "freq", None) is not None else held


def _column(array: Any, inner: Inner) -> Any:
    """Encode one array of values: in NumPy's form if possible, else by the kind of its dtype."""
    import numpy as np
    import pandas as pd

    dtype = array.dtype
    if isinstance(dtype, pd.StringDtype):  # first: one kept in Python is an array of NumPy's too
        return {
            "kind": "text",
            "storage": dtype.storage,
            "missing": "NA" if dtype.na_value is pd.NA else "nan",
            "value": [None if gone else inner(each, "") for each, gone in _with_gaps(array)],
        }
    if isinstance(dtype, np.dtype) or isinstance(array, pd.arrays.NumpyExtensionArray):
        return inner(np.asarray(array), "")
    if isinstance(dtype, pd.DatetimeTZDtype):
        moments = inner(np.asarray(array, f"M8[{dtype.unit}]").view("int64"), "")
        return {"kind": "zoned", "unit": dtype.unit, "zone": _zone_name(dtype.tz), "value": moments}
    if isinstance(dtype, pd.CategoricalDtype):
        return {
            "kind": "category",
            "ordered": bool(dtype.ordered),
            "categories": _index(dtype.categories, inner),
            "value": inner(np.asarray(array.codes), ""),
        }
    if dtype.name in _masked():
        return {
            "kind": "masked",
            "mask": inner(np.asarray(array.isna()), ""),
            "value": inner(array.to_numpy(dtype.numpy_dtype, na_value=0), ""),
        }
    raise Unfit(f"values of the dtype {dtype} have no encoding")


def _with_gaps(array: Any) -> Any:
    return zip(array, array.isna(), strict=True)


def _masked() -> frozenset[str]:
    """Return the dtypes of pandas that are NumPy's with gaps."""
    sized = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
    return frozenset({*sized, "Float32", "Float64", "boolean"})


def _zone_name(zone: dt.tzinfo | None) -> str | None:
    """Return the name of a time zone, as decoding knows it."""
    if zone is None:
        return None
    if zone is dt.UTC:
        return "UTC"
    key = getattr(zone, "key", None)
    if isinstance(zone, zoneinfo.ZoneInfo) and isinstance(key, str) and key != "UTC":
        return key
    raise Unfit(f"the time zone {zone!r} has no encoding")


# --- back ----------------------------------------------------------------------------------------


def make(encoded: Mapping[str, Any], back: Back) -> Any:
    """Make a value of pandas from its parts, which are hostile input.

    Raises:
        ValueError: the parts are invalid, or do not fit each other.
        ImportError: pandas is not installed.
    """
    import pandas as pd

    kind, value = encoded["type"], encoded["value"]
    if kind == "missing":
        return {"NaT": pd.NaT, "NA": pd.NA}[value]
    if kind == "index":
        return _index_of(value, back)
    if kind == "frame":
        index = _index_of(value["index"], back)
        columns = [_array_of(column, back) for _, column in value["data"]["value"]]
        made = {
            at: pd.Series(each, index=index, dtype=each.dtype) for at, each in enumerate(columns)
        }
        frame = pd.DataFrame(made, index=index)
        frame.columns = _index_of(value["columns"], back)
        frame.attrs = back(value.get("attrs", {}))
        return frame
    if kind == "series":
        array, index = _array_of(value["data"], back), _index_of(value["index"], back)
        series = pd.Series(array, index=index, dtype=array.dtype, name=back(value["name"]))
        series.attrs = back(value.get("attrs", {}))
        return series
    return _moment(kind, value["unit"], back(value["at"]), value["zone"], back)


def _moment(kind: Any, unit: Any, value: Any, zone: Any, back: Back) -> Any:
    import numpy as np
    import pandas as pd

    if unit not in _UNITS or type(value) is not int or kind not in ("timestamp", "timedelta"):
        raise ValueError("no value of pandas")
    if kind == "timedelta":
        return pd.Timedelta(np.timedelta64(value, unit))
    moment = pd.Timestamp(np.datetime64(value, unit))
    return moment if zone is None else moment.tz_localize("UTC").tz_convert(_zone(zone, back))


def _zone(name: Any, back: Back) -> dt.tzinfo:
    """Return the time zone with a name, looked up as for any recorded time."""
    if name == "UTC":
        return dt.UTC
    zone: dt.tzinfo = back(
        {"$rollcage": "datetime", "value": ["2000-01-01T00:00:00", name, 0]}
    ).tzinfo
    return zone


def _index_of(encoded: Mapping[str, Any], back: Back) -> Any:
    import pandas as pd

    kind, value = encoded["kind"], encoded["value"]
    if kind == "multi":
        levels = [_index_of(level, back) for level in encoded["levels"]]
        names = [back(name) for name in encoded["names"]]
        return pd.MultiIndex(levels=levels, codes=[back(codes) for codes in value], names=names)
    name = back(encoded["name"])
    if kind == "range":
        return pd.RangeIndex(*value, name=name)
    array = _array_of(value, back)
    index = pd.Index(array, dtype=array.dtype, name=name)
    freq = encoded.get("freq")
    return index if freq is None else type(index)(index, freq=freq, name=name)  # pyright: ignore[reportCallIssue] - known to mypy


def _array_of(encoded: Mapping[str, Any], back: Back) -> Any:
    """Return the array of a column: pandas' own, or NumPy's."""
    import numpy as np
    import pandas as pd

    kind = encoded.get("kind")
    if kind is None:
        array = back(encoded)
        if not isinstance(array, np.ndarray) or array.ndim != 1:
            raise ValueError("no column")
        return array
    if kind == "zoned":
        unit = encoded["unit"]
        if unit not in _UNITS:
            raise ValueError("no unit of time")
        moments = back(encoded["value"]).view(f"M8[{unit}]")
        zoned = pd.DatetimeIndex(moments).tz_localize("UTC")
        return zoned.tz_convert(_zone(encoded["zone"], back)).array
    if kind == "category":
        categories = _index_of(encoded["categories"], back)
        dtype = pd.CategoricalDtype(categories, ordered=bool(encoded["ordered"]))
        return pd.Categorical.from_codes(back(encoded["value"]), dtype=dtype)
    if kind == "text":
        missing = {"NA": pd.NA, "nan": np.nan}[encoded["missing"]]
        texts = [missing if each is None else back(each) for each in encoded["value"]]
        return pd.array(texts, dtype=pd.StringDtype(encoded["storage"], na_value=missing))
    if kind == "masked":
        values, mask = back(encoded["value"]), back(encoded["mask"])
        classes = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
        return classes.get(values.dtype.kind, pd.arrays.IntegerArray)(values, mask)
    raise ValueError(f"no column is called {str(kind)[:30]!r}")


_FORM: Final = Form("pandas", _take, make, foreign=True, check=True)
