"""What a guarded tool costs in an agent, beside what its framework takes for the call itself.

Each agent is the framework's own and runs to its end; its model is scripted. It asks for its calls
one by one, or for all of them at once. Bare and guarded differ in nothing but the guard.
"""
