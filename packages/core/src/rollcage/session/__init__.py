"""A session: one attempt at a run, from entering to leaving, and the flow of each call."""
