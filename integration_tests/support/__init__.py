"""Helpers of several integration tests."""
