"""What holds for every test: an example of Hypothesis may take its time, on a machine that is slow or stands still."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ours", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("ours"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ours"))
