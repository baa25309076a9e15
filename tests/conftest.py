"""For every test: Hypothesis looks for wrong answers, never for slow ones: a busy machine makes any example slow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
