"""An audit for other programs: JSON Lines and CSV."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rollcage_views.audit.entry import FIELDS, AuditEntry
from rollcage_views.audit.reading import Damaged, Item, Summary

__all__ = ["instant", "write_csv", "write_jsonl"]

_SCHEMA: Final = "rollcage.audit/1"
_PAIRS: Final = ("first_ran", "undoes", "left_by")  # a run and a step each
_COLUMNS: Final = tuple(
    column
    for field in FIELDS
    for column in ((f"{field}_run", f"{field}_step") if field in _PAIRS else (field,))
)
# A spreadsheet takes a cell with such a beginning for a formula (OWASP, CSV injection).
_FORMULA: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def instant(microseconds: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    try:
        moment = datetime.fromtimestamp(microseconds // 1_000_000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return "?"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{microseconds % 1_000_000:06d}Z"


def _data(item: Item) -> dict[str, Any] | None:
    """Return an item as data of one shape; None for the head of a run, which each entry repeats."""
    if isinstance(item, AuditEntry):
        data = dataclasses.asdict(item)
        for name in _PAIRS:
            run, step = data.pop(name) or ("", None)
            data |= {f"{name}_run": run, f"{name}_step": step}
        return {name: data[name] for name in _COLUMNS} | {"time": instant(item.time)}
    if isinstance(item, Damaged):
        blank = dict.fromkeys(_COLUMNS, "")
        own = {"kind": "damaged", "run": item.run, "code": item.code, "reason": item.reason}
        return blank | own
    return None


def write_jsonl(items: Iterator[Item], summary: Summary, out: TextIO) -> None:
    """Write one object a line, ASCII only; the last one is the summary."""
    for item in items:
        data = _data(item)
        if data is not None:
            _write({"schema": _SCHEMA, **data}, out)
    _write({"schema": _SCHEMA, **summary.as_data()}, out)


def _write(data: Mapping[str, Any], out: TextIO) -> None:
    out.write(json.dumps(data).replace("\x7f", "\\u007f") + "\n")


def write_csv(items: Iterator[Item], summary: Summary, out: TextIO) -> None:
    """Write a header and one row an entry (RFC 4180), each cell quoted and none a formula."""
    del summary  # the table has no row for it
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    for item in items:
        data = _data(item)
        if data is not None:
            writer.writerow([_cell(data[name]) for name in _COLUMNS])


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
