"""The demo: the flights of a day, and the screenshots."""
