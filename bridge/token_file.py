"""A token of the page in a file, for commands that ask a running bridge."""

from pathlib import Path

from bridge.errors import SettingsError


def read_token(file: Path) -> str:
    """The first line, with or without its name. Raises SettingsError."""
    try:
        line = file.read_text().strip().splitlines()[0]
    except (OSError, IndexError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"--token-file {file}: give a file with a token in its first line") from wrong
    return line.partition(":")[2] or line
