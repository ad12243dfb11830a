"""Declare tools, validate arguments, check outputs."""
