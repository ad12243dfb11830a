"""The palette: the colour of each state, status, decision and outcome, the same on every page."""

from __future__ import annotations

from typing import Final

__all__ = ["TONES", "tone"]

TONES: Final = ("ok", "replay", "bad", "unknown", "undone", "denied", "waiting", "dim")
"""The classes that have colours in `style.css`."""

_TONES: Final = {
    # of steps
    "ran": "ok", "hit": "replay", "simulated": "denied", "failed": "bad",
    "blocked": "denied", "cut_off": "unknown", "not_started": "dim",
    # of runs
    "error": "bad", "halted": "bad", "paused": "waiting", "partial": "unknown", "died": "bad",
    "unfinished": "unknown", "running": "replay", "abandoned": "dim", "would_write": "denied",
    "would_ask": "denied",
    # of workflows and of tools in a registry
    "completed": "ok", "given": "replay", "cancelled": "dim", "rolled_back": "undone",
    "interrupted": "unknown", "active": "ok", "proposed": "waiting", "frozen": "bad",
    "deprecated": "unknown",
    # of decisions and approvals
    "allow": "ok", "ask": "waiting", "deny": "denied", "approved": "ok", "edited": "ok",
    "responded": "ok", "rejected": "denied", "refused": "denied", "pending": "waiting",
    "decided": "ok", "expired": "dim", "damaged": "bad", "resumed": "dim",
    # of undos
    "reversible": "ok", "nothing": "dim", "conflict": "bad", "irreversible": "unknown",
    "verified": "undone", "compensated": "undone", "planned": "waiting", "done": "ok",
    # of an audit, and of a difference
    "stopped": "bad", "not_asked_for": "unknown", "user_input": "dim", "enforce": "dim",
    "shadow": "waiting", "same": "dim", "changed": "unknown", "only_a": "bad", "only_b": "ok",
}  # fmt: skip


def tone(word: str) -> str:
    """Return the colour class of a word; `dim` for an unknown word."""
    return word if word in TONES else _TONES.get(word, "dim")
