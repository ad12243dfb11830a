"""What is seen of recorded runs: pure functions over a store, for terminals and programs."""

from rollcage_views.alignment import Change, Pair, align, first_difference, in_order, pair_data
from rollcage_views.follow import Following
from rollcage_views.jobs import Attempt, Job, job_of, jobs_of
from rollcage_views.lineage import Effect, Standing, lineage_of, standing, words
from rollcage_views.names import short_ids
from rollcage_views.search import StepFilter
from rollcage_views.steps import call_text, outcome_text, said_text, state_text
from rollcage_views.text import (
    arguments_text,
    counted,
    duration_text,
    escape_json,
    time_text,
    value_text,
    visible,
)
from rollcage_views.tree import Node, tree_of
from rollcage_views.values import items_of, mapping_of, pairs_of, tag_of

__all__ = [
    "Attempt",
    "Change",
    "Effect",
    "Following",
    "Job",
    "Node",
    "Pair",
    "Standing",
    "StepFilter",
    "align",
    "arguments_text",
    "call_text",
    "counted",
    "duration_text",
    "escape_json",
    "first_difference",
    "in_order",
    "items_of",
    "job_of",
    "jobs_of",
    "lineage_of",
    "mapping_of",
    "outcome_text",
    "pair_data",
    "pairs_of",
    "said_text",
    "short_ids",
    "standing",
    "state_text",
    "tag_of",
    "time_text",
    "tree_of",
    "value_text",
    "visible",
    "words",
]
