"""`rollcage mcp install`: a client's own configuration, changed so that its servers are guarded."""
