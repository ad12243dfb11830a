"""`rollcage demo`: an agent dies at its ninth step, is started again, and goes on there.

`stage` says what is played and checks it, all of it read off the traces; `agent` is the program of
the processes that it starts.
"""

from rollcage_cli.demo.stage import demo

__all__ = ["demo"]
