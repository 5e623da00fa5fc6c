"""Read files with secrets: the page's tokens, and the key that instances share. Other users must not read them."""

import os
import re
import secrets
import stat
from hashlib import sha256
from pathlib import Path

from bridge.errors import SettingsError

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
HASHED = "sha256:"


def read_private(file: Path, what: str) -> str:
    """Return the text of `file`. Raises SettingsError, which never quotes it."""
    try:
        with file.open(encoding="utf-8") as opened:
            mode, text = _excess_mode(os.fstat(opened.fileno())), opened.read()
    except (OSError, UnicodeDecodeError) as wrong:
        why = getattr(wrong, "strerror", "no UTF-8 text")
        raise SettingsError(f"{what} {file}: {why}; give a text file that may be read") from wrong
    if mode:
        raise SettingsError(f"{what} {file}: mode {mode:o}, other users may read or change it; chmod 600 {file}")
    return text


def _excess_mode(found: os.stat_result) -> int:
    """Return the file's mode if others than its owner have rights, else 0.

    If root owns the file and we are another user, its group may read it: a Kubernetes secret is root:<fsGroup> 0440.
    """
    is_mounted = found.st_uid == 0 and os.geteuid() != 0
    mode = stat.S_IMODE(found.st_mode)
    return mode if mode & (0o037 if is_mounted else 0o077) else 0


def read_token(file: Path) -> str:
    """Return the token in the first line, which may have a name before it. Raises SettingsError."""
    line = read_private(file, "--token-file").strip().partition("\n")[0].strip()
    if not line:
        raise SettingsError(f"--token-file {file}: empty; give a file with a token in its first line")
    return line.partition(":")[2] or line


def digest_of(token: str) -> bytes:
    """Return the hash under which a token is kept. One round of SHA-256 is enough: a random token cannot be guessed."""
    return sha256(token.encode()).digest()


def new_token(name: str) -> tuple[str, str]:
    """Return a random token of 256 bits and its line for a tokens file. Raises SettingsError."""
    if not NAME.fullmatch(name):
        raise SettingsError(f"name {name!r}: not 1 to 64 letters, digits, _ and -; give such a name")
    token = secrets.token_urlsafe(32)
    return token, f"{name}:{HASHED}{digest_of(token).hex()}"
