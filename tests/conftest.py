"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine makes any example slow: how long one takes says nothing here.
settings.register_profile("fmslurm", deadline=None)
settings.load_profile("fmslurm")
