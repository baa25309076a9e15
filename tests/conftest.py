"""For every test: Hypothesis looks for wrong answers, never for slow ones: a busy machine makes any example slow."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

# A shell without job control starts what runs in the background with these ignored, and a child would inherit that.
for _interrupt in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_interrupt) is signal.SIG_IGN:
        signal.signal(_interrupt, signal.default_int_handler if _interrupt is signal.SIGINT else signal.SIG_DFL)
