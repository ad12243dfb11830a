"""`rollcage quickstart`: one incident in each framework that is installed, without and with.

`job` is what the agents do, `program` a process of theirs, and each framework has a module that
builds the agent as anybody would write it; `stage` plays them and checks what is left.
"""

from rollcage_cli.quickstart.stage import quickstart

__all__ = ["quickstart"]
