"""Settings of all tests."""

import hypothesis

# No test asserts a time: how long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("naiad", deadline=None)
hypothesis.settings.load_profile("naiad")
