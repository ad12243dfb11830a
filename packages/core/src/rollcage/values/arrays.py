"""Encode NumPy's arrays and scalars, and decode them: dtype, shape and bytes, without pickle."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from rollcage.values.forms import Back, Form, Inner, Unfit

__all__ = ["form_of", "make"]

_DTYPE: Final = re.compile(r"[<>|=](?:[biufc][0-9]{1,2}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,7}\])?)")
"""Kinds kept as bytes: booleans, numbers, dates and spans of time."""

_LISTS: Final = re.compile(r"[<>|=](?:[US][0-9]{1,9}|O)")
"""Kinds kept as a list: texts, in which a secret has to be found, and objects."""


def form_of(kind: type[Any]) -> Form | None:
    """Return the form of a NumPy class; None for a class without one."""
    import numpy as np

    if kind is np.ndarray:
        return _FORM
    return _FORM if issubclass(kind, np.generic) and kind.__module__ == "numpy" else None


def make(encoded: Mapping[str, Any], back: Back) -> Any:
    """Make an array or scalar from its parts, which are hostile input.

    Raises:
        ValueError: the parts are invalid, or do not fit each other.
        ImportError: NumPy is not installed.
    """
    import numpy as np

    name = encoded["dtype"]
    if not isinstance(name, str) or not (_DTYPE.fullmatch(name) or _LISTS.fullmatch(name)):
        raise ValueError(f"no dtype of recorded arrays is called {str(name)[:30]!r}")
    if encoded.get("type") == "scalar":
        item = back(encoded["value"])
        if name[1] in "mM":
            return np.array(item, "int64").view(np.dtype(name))[()]
        return np.dtype(name).type(item)
    shape = encoded["shape"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("no shape of an array")
    size = math.prod(shape)
    if _LISTS.fullmatch(name):
        return _listed(name, size, encoded["value"], back).reshape(shape)
    dtype, data = np.dtype(name), back(encoded["value"])
    if type(data) is not bytes or len(data) != dtype.itemsize * size:
        raise ValueError("its bytes are not as many as its shape says")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _listed(name: str, size: int, items: Any, back: Back) -> Any:
    import numpy as np

    if not isinstance(items, list) or len(items) != size:
        raise ValueError("its values are not as many as its shape says")
    dtype = np.dtype(name)
    if dtype.itemsize * size > _ROOM + _LARGEST_TEXT * sum(len(str(each)) for each in items):
        raise ValueError("its dtype is far wider than its texts")
    array = np.empty(size, dtype)
    for at, each in enumerate(items):
        array[at] = back(each)
    return array


def _take(value: Any, inner: Inner) -> dict[str, Any]:
    import numpy as np

    array = np.asarray(value)
    name: str = array.dtype.str
    if array.dtype.metadata or not (_DTYPE.fullmatch(name) or _LISTS.fullmatch(name)):
        raise Unfit(f"values of the dtype {array.dtype} have no encoding")
    if not isinstance(value, np.ndarray):
        item = array.astype("int64").item() if name[1] in "mM" else array.item()
        if isinstance(item, np.generic):  # wider than any number of Python's
            raise Unfit(f"values of the dtype {array.dtype} have no encoding")
        return {"type": "scalar", "dtype": name, "value": inner(item, "")}
    encoded: Any
    if _DTYPE.fullmatch(name):
        encoded = inner(array.tobytes(), "")
    else:
        items = list(array.ravel()) if name[1] == "O" else array.ravel().tolist()
        if array.nbytes > _ROOM + _LARGEST_TEXT * sum(len(str(each)) for each in items):
            raise Unfit(f"the dtype {array.dtype} is far wider than its texts")
        encoded = [inner(each, f"[{at}]") for at, each in enumerate(items)]
    return {"type": "array", "dtype": name, "shape": list(array.shape), "value": encoded}


_ROOM: Final = 64 * 1024 * 1024  # bytes that any array of texts may take
_LARGEST_TEXT: Final = 16  # bytes that it may take for each character
_FORM: Final = Form("numpy", _take, make, foreign=True)
