"""The model of the resources for a load: docs/capacity.md and `timer-bridge size`."""
