"""What holds for every test of the workspace."""

import os

from hypothesis import settings

# No timing assertion, so no deadline; in CI the same examples each time, elsewhere new ones.
settings.register_profile("rollcage", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("rollcage")
