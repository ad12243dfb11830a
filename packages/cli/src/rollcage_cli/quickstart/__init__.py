"""`rollcage quickstart`: one incident in each installed framework, without and with Rollcage.

`job` has the agents' work, `program` one of their processes, and each framework has a module that
builds an ordinary agent; `stage` plays them and checks the result.
"""

from rollcage_cli.quickstart.stage import quickstart

__all__ = ["quickstart"]
