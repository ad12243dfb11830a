"""What if? Recorded runs, made again with one thing changed.

`Session(stages=[Fork(run, at=4, result=...)])` is a fork of a run. `rollcage fork` forks the run of
an unchanged program.
"""

from rollcage_fork.files import from_file
from rollcage_fork.fork import Fork, Replacement, fork_of

__all__ = ["Fork", "Replacement", "fork_of", "from_file"]
