"""What a recorded call costs, measured beside the floor and beside peers: `python -m benchmarks`."""
