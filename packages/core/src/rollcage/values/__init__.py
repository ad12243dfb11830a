"""A value as the trace holds it, and back: codec, decoding, exceptions, the answers of models."""
