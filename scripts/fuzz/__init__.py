"""Fuzzing of all decoders."""
