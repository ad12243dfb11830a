"""How effects are undone: plans, what can be done with each step, reports."""
