"""What holds for every test: an example of Hypothesis may take its time, on a machine that is slow or stands still."""

from __future__ import annotations

from tests.support.examples import load_profile

load_profile()
