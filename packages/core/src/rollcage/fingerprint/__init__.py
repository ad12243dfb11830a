"""Identify a step: canonical bytes, keys, worlds, fingerprints."""
