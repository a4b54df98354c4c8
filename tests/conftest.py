"""What all tests share: how hypothesis works here."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code under test: pytest-timeout watches the clock instead.
settings.register_profile("rookery", deadline=None)
settings.load_profile("rookery")
