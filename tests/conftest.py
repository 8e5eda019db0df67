"""Settings of all tests."""

import signal

import hypothesis

# No test asserts a time: how long an example takes depends on what else the machine does.
slowness = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("naiad", deadline=None, suppress_health_check=slowness)
hypothesis.settings.load_profile("naiad")

# A shell that runs the tests in the background has them ignore it, and with them all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
