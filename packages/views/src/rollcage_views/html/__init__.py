"""Pages: reports of one file each, and the parts of a server's own pages.

Needs `rollcage-views[html]`. Templates get escaped values, and a `Links` with the addresses of
other pages. A page fetches nothing, and can be read without its script.
"""

from rollcage_views.html.audits import audit_parts, audit_row, write_audit
from rollcage_views.html.differences import DiffPage, DiffRow, diff_page, write_diff
from rollcage_views.html.links import Links
from rollcage_views.html.rendering import (
    environment,
    loader,
    script,
    set_up,
    stylesheet,
    write_report,
)
from rollcage_views.html.rows import StepRow, step_row, step_rows
from rollcage_views.html.runs import RunHead, RunPage, run_head, run_page, track_rows, write_run
from rollcage_views.html.tones import TONES, tone
from rollcage_views.html.undos import UndoRow, undo_rows

__all__ = [
    "TONES",
    "DiffPage",
    "DiffRow",
    "Links",
    "RunHead",
    "RunPage",
    "StepRow",
    "UndoRow",
    "audit_parts",
    "audit_row",
    "diff_page",
    "environment",
    "loader",
    "run_head",
    "run_page",
    "script",
    "set_up",
    "step_row",
    "step_rows",
    "stylesheet",
    "tone",
    "track_rows",
    "undo_rows",
    "write_audit",
    "write_diff",
    "write_report",
    "write_run",
]
