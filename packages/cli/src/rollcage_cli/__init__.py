"""The `rollcage` command: look at the runs of AI agents, verify, compare, resolve, export them."""
