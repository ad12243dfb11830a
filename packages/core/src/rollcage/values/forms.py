"""Encode values of the standard library in results."""

from __future__ import annotations

import builtins
import collections
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["STANDARD", "Back", "Form", "Inner", "Unfit"]

Inner = Callable[[Any, str], Any]
"""Encodes a part of a value, given its path."""

Back = Callable[[Any], Any]
"""Decodes a part of a value."""


class Unfit(Exception):
    """Report a value that its form can't hold; the message says why."""


class Form(NamedTuple):
    """Take values of a library's class apart, and make them again.

    Attributes:
        tag: the name in the trace.
        take: encodes a value as fields; raises `Unfit`.
        make: restores the value from these fields, which are hostile input.
        foreign: whether only a replay restores it; any other reader gets its parts as data.
        check: whether restoring each value has to be tried.
    """

    tag: str
    take: Callable[[Any, Inner], dict[str, Any]]
    make: Callable[[Mapping[str, Any], Back], Any]
    foreign: bool = False
    check: bool = False


# --- the standard library ------------------------------------------------------------------------


def _items(value: Any, inner: Inner) -> list[Any]:
    return [inner(each, f"[{at}]") for at, each in enumerate(value)]


def _as_dict(value: Mapping[Any, Any], inner: Inner) -> dict[str, Any]:
    return {"value": inner(dict(value), "")}


def _take_deque(value: Any, inner: Inner) -> dict[str, Any]:
    return {"value": _items(value, inner), "maxlen": value.maxlen}


def _make_deque(encoded: Mapping[str, Any], back: Back) -> Any:
    return collections.deque(map(back, encoded["value"]), encoded["maxlen"])


_FACTORIES: Final = {
    name: getattr(builtins, name)
    for name in ("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")
}


def _take_defaultdict(value: Any, inner: Inner) -> dict[str, Any]:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name or "") is not factory:
        raise Unfit(f"its default factory, {factory!r}, has no encoding")
    return {**_as_dict(value, inner), "factory": name}


def _make_defaultdict(encoded: Mapping[str, Any], back: Back) -> Any:
    name = encoded["factory"]
    factory = None if name is None else _FACTORIES[name]
    return collections.defaultdict(factory, back(encoded["value"]))


def _take_fraction(value: Any, inner: Inner) -> dict[str, Any]:
    return {"value": [inner(value.numerator, ""), inner(value.denominator, "")]}


def _make_fraction(encoded: Mapping[str, Any], back: Back) -> Any:
    from fractions import Fraction  # only if one was recorded

    above, below = map(back, encoded["value"])
    return Fraction(above, below)


def _make_address(encoded: Mapping[str, Any], _: Back) -> Any:
    import ipaddress

    kind, text = encoded["type"], encoded["value"]
    if kind not in _ADDRESSES or not isinstance(text, str):
        raise ValueError("no address of the network")
    return getattr(ipaddress, kind)(text)


_ADDRESSES: Final = (
    "IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network", "IPv4Interface", "IPv6Interface",
)  # fmt: skip

_DEQUE: Final = Form("deque", _take_deque, _make_deque)
_DEFAULTDICT: Final = Form("defaultdict", _take_defaultdict, _make_defaultdict)
_ORDERED: Final = Form(
    "ordereddict", _as_dict, lambda e, back: collections.OrderedDict(back(e["value"]))
)
_COUNTER: Final = Form("counter", _as_dict, lambda e, back: collections.Counter(back(e["value"])))
_RANGE: Final = Form(
    "range",
    lambda v, inner: {"value": [inner(v.start, ""), inner(v.stop, ""), inner(v.step, "")]},
    lambda e, back: range(*map(back, e["value"])),
)
_NAMESPACE: Final = Form(
    "namespace",
    lambda v, inner: _as_dict(vars(v), inner),
    lambda e, back: types.SimpleNamespace(**back(e["value"])),
)
_FRACTION: Final = Form("fraction", _take_fraction, _make_fraction)
_ADDRESS: Final = Form(
    "address", lambda v, _: {"type": type(v).__name__, "value": str(v)}, _make_address
)

STANDARD: Final[dict[tuple[str, str], Form]] = {
    ("collections", "deque"): _DEQUE,
    ("collections", "defaultdict"): _DEFAULTDICT,
    ("collections", "OrderedDict"): _ORDERED,
    ("collections", "Counter"): _COUNTER,
    ("builtins", "range"): _RANGE,
    ("types", "SimpleNamespace"): _NAMESPACE,
    ("fractions", "Fraction"): _FRACTION,
    **{("ipaddress", name): _ADDRESS for name in _ADDRESSES},
}
"""The forms of standard classes, by module and name."""
