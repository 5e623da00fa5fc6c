"""Settings of the property tests: no deadlines, as no test asserts a time; a failure prints how to repeat it.

And what workers share out (pytest -n): tests with a broker are one worker's, as they share the broker; so are Spark's.
"""

import pytest
from hypothesis import settings

settings.register_profile("timer-bridge", deadline=None, print_blob=True)
settings.load_profile("timer-bridge")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for group in ("broker", "spark"):
            if item.get_closest_marker(group) is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                break
