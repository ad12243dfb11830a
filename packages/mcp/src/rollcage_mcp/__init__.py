"""MCP servers behind a guard: each call is recorded, gated, replayed and undone."""
