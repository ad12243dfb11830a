"""Runs that were opened again after they had ended: what was noted of their end may be outdated.

Until the end is noted anew, a document says so, by which whoever asks for runs by their status
finds them. One that is left behind by a killed process costs a look, and nothing else.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KIND"]

KIND: Final = "reopened"
"""Of the documents, whose keys are the runs."""
