"""How effects are taken back: plans, what can be done with each step, reports."""
