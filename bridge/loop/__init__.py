"""The loop: the order of a turn, and the checks that run now and then."""
