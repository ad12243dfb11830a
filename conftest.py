"""What holds for every test of the workspace: how many cases Hypothesis tries, and which.

`HYPOTHESIS_PROFILE` chooses: `ci` (new ones each time; what replays a failure is printed),
`laws` (many; `nox -s laws`), else `local`, which remembers failures in `.hypothesis`. A property
sets no number of its own; one whose cases cost next to nothing takes a multiple of the profile's:
`@settings(max_examples=20 * settings().max_examples)`.
"""

import os

from hypothesis import settings

# No timing assertion, so no deadline.
settings.register_profile("local", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=100, database=None, print_blob=True)
settings.register_profile("laws", deadline=None, max_examples=3_000, database=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "local"))
