"""Settings of all tests."""

import hypothesis

# No test asserts a time: how long an example takes depends on what else the machine does.
slowness = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("naiad", deadline=None, suppress_health_check=slowness)
hypothesis.settings.load_profile("naiad")
