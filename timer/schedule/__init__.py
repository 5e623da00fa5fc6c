"""Which timer leaves next, and which has to wait."""
