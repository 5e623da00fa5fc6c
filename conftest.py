"""Settings of the property tests: no deadlines, as no test asserts a time; a failure prints how to repeat it."""

from hypothesis import settings

settings.register_profile("timer-bridge", deadline=None, print_blob=True)
settings.load_profile("timer-bridge")
