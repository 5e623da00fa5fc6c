"""The command line, `timer-bridge`."""

from bridge.cli.app import main as main
