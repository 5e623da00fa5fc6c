"""The client's former import path, for one release: import `kafka_timer` instead."""

import warnings

from kafka_timer import *  # noqa: F403

warnings.warn("bridge.client: is now kafka_timer; import that", DeprecationWarning, stacklevel=2)
