"""What keeps a store durable, small and quick to open."""
