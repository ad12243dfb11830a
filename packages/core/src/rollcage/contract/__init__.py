"""What a tool declares: its contract, how arguments are bound, what its output must be."""
