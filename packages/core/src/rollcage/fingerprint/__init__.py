"""What a step is called: canonical bytes, keys, worlds, fingerprints."""
