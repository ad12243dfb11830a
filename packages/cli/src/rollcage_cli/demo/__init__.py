"""`rollcage demo`: an agent dies at its ninth step, and is resumed in a new process.

`stage` plays the demo and checks it against the traces; `agent` is the program of the processes
that it starts.
"""

from rollcage_cli.demo.stage import demo

__all__ = ["demo"]
