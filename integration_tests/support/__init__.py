"""What several integration tests share."""
