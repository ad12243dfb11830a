"""Find the forms of values of the standard library, NumPy and pandas in a fixed table.

A class is recognised by its module, so the lookup imports nothing. A library is imported only to
restore a recorded value, by its name in this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollcage.values.forms import STANDARD, Back, Form

__all__ = ["FORMS", "form_of"]


def form_of(kind: type[Any]) -> Form | None:
    """Return the form of values of this exact class; None without one."""
    module = kind.__module__
    if type(module) is not str:  # a class may set it to anything
        return None
    found = STANDARD.get((module, kind.__qualname__))
    if found is not None:
        return found
    library = module.partition(".")[0]
    if library == "numpy":
        from rollcage.values import arrays  # a NumPy result has loaded NumPy

        return arrays.form_of(kind)
    if library == "pandas":
        from rollcage.values import frames

        return frames.form_of(kind)
    return None


def _make_array(encoded: Mapping[str, Any], back: Back) -> Any:
    from rollcage.values import arrays

    return arrays.make(encoded, back)


def _make_frame(encoded: Mapping[str, Any], back: Back) -> Any:
    from rollcage.values import frames

    return frames.make(encoded, back)


FORMS: Final[dict[str, Form]] = {
    **{form.tag: form for form in STANDARD.values()},
    "numpy": Form("numpy", lambda *_: {}, _make_array, foreign=True),
    "pandas": Form("pandas", lambda *_: {}, _make_frame, foreign=True),
}
"""The functions that restore recorded values, by tag."""
