"""`rollcage demo`."""


def demo() -> None:
    """See it work."""
