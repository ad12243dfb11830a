"""Stores of runs in databases: a SQLite file, or a schema of PostgreSQL.

They are found by their URLs: `open_store("sqlite:///runs.db")`.
"""
