"""An audit: who made each call, which rule decided, which calls were undone; no credentials.

Needs `rollcage-views[audit]`, which finds credentials in texts.
"""

from rollcage_views.audit.entry import FIELDS, AuditEntry, Origin, RunHeading
from rollcage_views.audit.lines import instant, write_csv, write_jsonl
from rollcage_views.audit.reading import Damaged, Item, Summary, audited
from rollcage_views.audit.selection import Named, Selection, runs_of
from rollcage_views.audit.telling import (
    about_run,
    counts_of,
    most_first,
    open_text,
    short,
    subject,
    totals_text,
    what_happened,
    who_decided,
)
from rollcage_views.screen import Screen

__all__ = [
    "FIELDS",
    "AuditEntry",
    "Damaged",
    "Item",
    "Named",
    "Origin",
    "RunHeading",
    "Screen",
    "Selection",
    "Summary",
    "about_run",
    "audited",
    "counts_of",
    "instant",
    "most_first",
    "open_text",
    "runs_of",
    "short",
    "subject",
    "totals_text",
    "what_happened",
    "who_decided",
    "write_csv",
    "write_jsonl",
]  # fmt: skip
