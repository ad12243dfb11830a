"""Measure what a guard adds to a tool in an agent, beside the framework's own cost of a call.

Each agent is the framework's own and runs to its end; its model is scripted. It asks for its calls
one by one, or for all of them at once. Bare and guarded differ in nothing but the guard.
"""
