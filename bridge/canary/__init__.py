"""Send timers end to end, and measure when each arrives. Command: bridge/cli/canary_command.py."""
