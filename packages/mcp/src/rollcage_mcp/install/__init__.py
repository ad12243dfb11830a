"""`rollcage mcp install`: guard the servers in a client's own configuration."""
