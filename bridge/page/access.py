"""Who may. A token in a file is the only secret; whatever is handed out is signed with it and tells nothing of it.

    tokens file       ops-ada:3f0c...   one a line, `name:token`; a line without a name has that of its file
    API               Authorization: Bearer <token>
    page              a cookie           name.end.signature, made at the login
    neighbour         Authorization: Pass name.end.signature of what is asked where    a read alone, for 30 s

No tokens: everybody who reaches the port may do everything, so that is for loopback alone (bridge.settings).
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from bridge.errors import SettingsError

Role = Literal["read", "operate"]

SESSION_S = 8 * 3600
_PASS_S = 30
_SHORTEST = 16
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Token(NamedTuple):
    name: str
    role: Role
    secret: bytes

    def sign(self, what: str) -> str:
        return hmac.new(self.secret, what.encode(), hashlib.sha256).hexdigest()


class Caller(NamedTuple):
    """Who asks, and from which address. `token`: None where there are none. `is_passed`: a neighbour asks for them."""

    name: str
    role: Role
    token: Token | None = None
    where: str = ""
    is_passed: bool = False

    @property
    def may_operate(self) -> bool:
        return self.role == "operate"


ANYBODY = Caller("anybody", "operate")


def read_tokens(path: Path, role: Role) -> list[Token]:
    """Raises SettingsError, never with what is in the file."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as wrong:
        raise SettingsError(f"tokens {path}: {wrong.strerror}: give a file that may be read") from wrong
    except UnicodeDecodeError as wrong:
        raise SettingsError(f"tokens {path} is no UTF-8 text: write name:token into it, one a line") from wrong
    tokens = [_token(path, number, line, role) for number, line in enumerate(lines, 1)]
    if not tokens:
        raise SettingsError(f"tokens {path} is empty: write name:token into it, one a line")
    return tokens


def _token(path: Path, number: int, line: str, role: Role) -> Token:
    name, colon, secret = line.partition(":")
    if not colon:
        name, secret = path.stem, line
    if not _NAME.fullmatch(name):
        raise SettingsError(f"tokens {path}, line {number}: a name is made of letters, digits, _ and -")
    if len(secret) < _SHORTEST:
        raise SettingsError(
            f"tokens {path}, line {number}: shorter than {_SHORTEST} characters: make one with openssl rand -hex 32"
        )
    return Token(name, role, secret.encode())


class Access:
    """`now_s`: epoch seconds, alike on all instances. `address`: that by which others ask us.

    Raises SettingsError where two tokens have one name.
    """

    def __init__(self, tokens: Iterable[Token], now_s: Callable[[], float], address: str = "") -> None:
        self._now_s = now_s
        self._address = address
        self._tokens: dict[str, Token] = {}
        self._nobody = Token("nobody", "read", secrets.token_bytes(32))
        for token in tokens:
            if token.name in self._tokens:
                raise SettingsError(f"tokens: two are named {token.name}: the audit log could not tell who it was")
            self._tokens[token.name] = token

    @property
    def is_open(self) -> bool:
        return not self._tokens

    def by_secret(self, secret: str) -> Caller | None:
        """Takes as long whatever was given."""
        given, found = secret.encode(), None
        for token in self._tokens.values():
            if hmac.compare_digest(token.secret, given):
                found = Caller(token.name, token.role, token)
        return found

    def session(self, caller: Caller) -> str:
        return self._signed(caller, SESSION_S, "session")

    def by_session(self, text: str) -> Caller | None:
        return self._by_signed(text, "session")

    def pass_for(self, caller: Caller, address: str, asked: str) -> str:
        """For the neighbour at `address` that is asked for `asked`, a path with its query; of use nowhere else."""
        return self._signed(caller, _PASS_S, f"pass {address} {asked}")

    def by_pass(self, text: str, asked: str) -> Caller | None:
        """It may read, whoever sent it."""
        caller = self._by_signed(text, f"pass {self._address} {asked}")
        return caller and caller._replace(role="read", is_passed=True)

    def form_key(self, caller: Caller, session: str) -> str:
        """Stands in each form, so that no other site can make a browser send one."""
        token = caller.token or self._nobody
        return token.sign(f"form {session}")

    def is_form_key(self, text: str, caller: Caller, session: str) -> bool:
        return hmac.compare_digest(text.encode(), self.form_key(caller, session).encode())

    def _signed(self, caller: Caller, for_s: int, what: str) -> str:
        assert caller.token is not None, "nobody to sign for"
        said = f"{caller.name}.{int(self._now_s()) + for_s}"
        return f"{said}.{caller.token.sign(f'{what} {said}')}"

    def _by_signed(self, text: str, what: str) -> Caller | None:
        said, _, signature = text.rpartition(".")
        name, _, end_s = said.partition(".")
        token = self._tokens.get(name)
        if token is None or not hmac.compare_digest(signature.encode(), token.sign(f"{what} {said}").encode()):
            return None
        return Caller(name, token.role, token) if self._now_s() < int(end_s) else None
