"""Measure what a recorded call costs, beside the floor and beside peers: `python -m benchmarks`."""
