"""Views of recorded runs: pure functions over a store, for terminals, pages and programs.

Each view has a form for machines, `as_data()` or a function that ends in `_data`. Displayed values
go through a `Viewer`, which hides values from people without the right to see them.
"""

from rollcage_views.alignment import Change, Pair, align, first_difference, in_order, pair_data
from rollcage_views.changes import DiffLine, StateChange, changes_of, line_diff
from rollcage_views.data import run_data, step_data
from rollcage_views.follow import Following
from rollcage_views.inbox import Inbox, Waiting, inbox_of, may_answer, queued_data
from rollcage_views.infos import info_data, is_pruned, mode_of
from rollcage_views.jobs import Job, JobRun, job_of, jobs_of, newest_first
from rollcage_views.names import short_ids
from rollcage_views.orders import order_data, pause_of, pause_text
from rollcage_views.policies import Hit, RuleCount, hits_of, rule_counts
from rollcage_views.requests import Queued, Requests
from rollcage_views.runs import (
    STATES,
    AskedApproval,
    Attempt,
    RefusedCall,
    Run,
    State,
    Step,
    read_run,
)
from rollcage_views.search import (
    MARKS,
    FoundStep,
    RunFilter,
    StepFilter,
    search_runs,
    search_steps,
)
from rollcage_views.searching import FoundRun, Search, search_page
from rollcage_views.sheets import Sheet, sheet_of
from rollcage_views.states import States
from rollcage_views.status import Effect, Standing, resolve_commands, standing, words
from rollcage_views.steps import answer_text, call_text, outcome_text, state_text
from rollcage_views.text import (
    arguments_text,
    counted,
    duration_text,
    escape_json,
    time_text,
    utc_text,
    value_text,
    visible,
)
from rollcage_views.timeline import Bar, Timeline, timeline_of
from rollcage_views.tree import Node, tree_of
from rollcage_views.usage import Price, Usage, UsageRow, usage_of
from rollcage_views.values import items_of, mapping_of, pairs_of, tag_of
from rollcage_views.viewer import HIDDEN, SEES_ALL, TO_GIVE_AWAY, Viewer

__all__ = [
    "HIDDEN",
    "MARKS",
    "SEES_ALL",
    "STATES",
    "TO_GIVE_AWAY",
    "AskedApproval",
    "Attempt",
    "Bar",
    "Change",
    "DiffLine",
    "Effect",
    "Following",
    "FoundRun",
    "FoundStep",
    "Hit",
    "Inbox",
    "Job",
    "JobRun",
    "Node",
    "Pair",
    "Price",
    "Queued",
    "RefusedCall",
    "Requests",
    "RuleCount",
    "Run",
    "RunFilter",
    "Search",
    "Sheet",
    "Standing",
    "State",
    "StateChange",
    "States",
    "Step",
    "StepFilter",
    "Timeline",
    "Usage",
    "UsageRow",
    "Viewer",
    "Waiting",
    "align",
    "answer_text",
    "arguments_text",
    "call_text",
    "changes_of",
    "counted",
    "duration_text",
    "escape_json",
    "first_difference",
    "hits_of",
    "in_order",
    "inbox_of",
    "info_data",
    "is_pruned",
    "items_of",
    "job_of",
    "jobs_of",
    "line_diff",
    "mapping_of",
    "may_answer",
    "mode_of",
    "newest_first",
    "order_data",
    "outcome_text",
    "pair_data",
    "pairs_of",
    "pause_of",
    "pause_text",
    "queued_data",
    "read_run",
    "resolve_commands",
    "rule_counts",
    "run_data",
    "search_page",
    "search_runs",
    "search_steps",
    "sheet_of",
    "short_ids",
    "standing",
    "state_text",
    "step_data",
    "tag_of",
    "time_text",
    "timeline_of",
    "tree_of",
    "usage_of",
    "utc_text",
    "value_text",
    "visible",
    "words",
]
