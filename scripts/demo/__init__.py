"""The demo: the flights of a day."""
