"""The lines of a log, as they are published: their format, and what checks them.

The hot path writes lines as plain dicts; every line that is written passes the models in
`trace.log_models`, which a test shows and `rollcage verify` checks. Those are imported when they
are first asked for: recording needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["FORMAT", "event_adapter", "json_schema"]

FORMAT: Final = "rollcage/2"


def event_adapter() -> TypeAdapter[Any]:
    """Return what validates one line of a log."""
    from rollcage.trace.log_models import adapter  # building models takes 50 ms

    return adapter()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of a log (draft 2020-12), as published."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a log, format {FORMAT}",
        **event_adapter().json_schema(),
    }
