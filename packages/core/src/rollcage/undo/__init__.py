"""Undo effects: plan, assess each step, carry out, report."""
