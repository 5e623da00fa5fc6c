"""Keep a store durable, small and quick to open."""
