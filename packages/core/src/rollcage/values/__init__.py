"""Encode values for the trace, and decode them: codec, exceptions, the answers of models."""
