"""`rollcage fork`: repeat a recorded run, with one thing changed."""

from __future__ import annotations

from rollcage_cli.forks.asking import ForkRequest, asked_fork
from rollcage_cli.forks.running import ForkResult, Program, run_fork, would_have

__all__ = ["ForkRequest", "ForkResult", "Program", "asked_fork", "run_fork", "would_have"]
