"""Measure other libraries that keep a record of each call, each on the same call.

A library that is not installed is named as missing. None is tuned down: each runs as its own
documentation shows, with its record on disk.
"""
