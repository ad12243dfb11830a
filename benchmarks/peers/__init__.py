"""Other libraries that keep a record of each call, each measured on the same call.

One that is not installed is said to be so. None is tuned down: each runs as its own documentation
shows, with its record on disk.
"""
