"""The fixtures kafka_container and timer_bridge."""

pytest_plugins = ["kafka_timer.pytest_plugin"]
