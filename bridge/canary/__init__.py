"""Send timers through the whole way, and measure when each arrives. Command: bridge/cli/canary_command.py."""
