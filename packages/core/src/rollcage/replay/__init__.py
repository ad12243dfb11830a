"""What answers a call: the walk along what is recorded, and matching. Pure, without I/O."""
