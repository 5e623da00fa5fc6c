"""A seeded simulation of the bridge, its oracle and its planted bugs. Not shipped."""
