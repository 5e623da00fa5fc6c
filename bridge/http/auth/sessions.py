"""Who may. Tokens stand in files; what is handed out instead of them tells nothing of them.

    tokens file       ops-ada:sha256:9f86...   one a line, by `timer-bridge token ops-ada`; or name:token; a line
                                               without a name has that of its file
    API               Authorization: Bearer <token>
    page              a cookie           a random session id; sessions are in this process, until logout or 8 h
    neighbour         Authorization: Pass name.end.signature of what is asked where    a read alone, for 30 s

No tokens: everybody who reaches the port may do everything, so that is for loopback alone (bridge.config.settings).
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from itsdangerous import BadSignature, Signer

from bridge.config.secret_file import HASHED, NAME, digest_of, read_private
from bridge.errors import SettingsError
from bridge.http.auth.wrong_tokens import WrongTokens
from bridge.observe.log_throttle import LogThrottle

log = logging.getLogger(__name__)

Role = Literal["read", "operate"]

SESSION_S = 8 * 3600
MOST_SESSIONS = 1000
"""The oldest one ends when there are more."""
_PASS_S = 30
_SHORTEST = 16
_DIGEST = re.compile(rf"{HASHED}([0-9a-f]{{64}})")


class Token(NamedTuple):
    """`digest`: SHA-256 of the token."""

    name: str
    role: Role
    digest: bytes
    is_hashed: bool = False
    """The file holds the digest alone."""


class Caller(NamedTuple):
    """Who asks, and from which address. `is_passed`: a neighbour asks for them."""

    name: str
    role: Role
    where: str = ""
    is_passed: bool = False

    @property
    def may_operate(self) -> bool:
        return self.role == "operate"


ANYBODY = Caller("anybody", "operate")


def read_tokens(path: Path, role: Role) -> list[Token]:
    """Raises SettingsError, never with what is in the file."""
    lines = [line.strip() for line in read_private(path, "tokens").splitlines() if line.strip()]
    tokens = [_token(path, number, line, role) for number, line in enumerate(lines, 1)]
    if not tokens:
        raise SettingsError(f"tokens {path} is empty; write a line into it, made with `timer-bridge token NAME`")
    return tokens


def _token(path: Path, number: int, line: str, role: Role) -> Token:
    name, colon, secret = line.partition(":")
    if not colon or line.startswith(HASHED):
        name, secret = path.stem, line
    if not NAME.fullmatch(name):
        raise SettingsError(f"tokens {path}, line {number}: a name is made of letters, digits, _ and -")
    if found := _DIGEST.fullmatch(secret):
        return Token(name, role, bytes.fromhex(found[1]), is_hashed=True)
    if secret.startswith(HASHED) or len(secret) < _SHORTEST:
        raise SettingsError(
            f"tokens {path}, line {number}: no {HASHED} with 64 hexadecimal digits, and as a token shorter than"
            f" {_SHORTEST} characters; make a line with `timer-bridge token NAME`"
        )
    return Token(name, role, digest_of(secret))


def peer_key(tokens: Iterable[Token]) -> bytes:
    """Return the key that instances sign with for each other, of all `tokens` together.

    A pass goes to whatever address a member announces. scrypt makes a guess at the secret behind it slow: 32 MB, 0.1 s.
    """
    source = b"".join(sorted(each.digest for each in tokens))
    return hashlib.scrypt(source, salt=b"timer-bridge peers", n=1 << 15, r=8, p=1, maxmem=64 << 20, dklen=32)


class Authenticator:
    """`now_s`: epoch seconds, alike on all instances. `address`: that by which others ask us. `key`: see `peer_key`.

    Raises SettingsError where two tokens have one name.
    """

    def __init__(
        self, tokens: Iterable[Token], now_s: Callable[[], float], address: str = "", key: bytes = b""
    ) -> None:
        self.now_s = now_s
        self.wrong_tokens = WrongTokens(now_s)
        self.complaints = LogThrottle(log)
        self._address = address
        self._key = key or secrets.token_bytes(32)
        self._tokens: dict[str, Token] = {}
        self._sessions: dict[str, tuple[Caller, float]] = {}
        self._form_key = secrets.token_bytes(32)
        for token in tokens:
            if token.name in self._tokens:
                raise SettingsError(f"tokens: two are named {token.name}: the audit log could not tell who it was")
            self._tokens[token.name] = token

    @property
    def is_open(self) -> bool:
        return not self._tokens

    def by_secret(self, secret: str) -> Caller | None:
        """Takes as long whatever was given."""
        given, found = digest_of(secret), None
        for token in self._tokens.values():
            if hmac.compare_digest(token.digest, given):
                found = Caller(token.name, token.role)
        return found

    def log_in(self, caller: Caller) -> str:
        """Return the id of a new session."""
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        id_ = secrets.token_urlsafe(32)
        self._sessions[id_] = caller, self.now_s() + SESSION_S
        return id_

    def log_out(self, session: str) -> None:
        self._sessions.pop(session, None)

    def by_session(self, session: str) -> Caller | None:
        caller, end_s = self._sessions.get(session, (None, 0))
        return caller if self.now_s() < end_s else None

    def form_key(self, session: str) -> str:
        """Stands in each form, so that no other site can make a browser send one."""
        return hmac.new(self._form_key, session.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, text: str, session: str) -> bool:
        return hmac.compare_digest(text.encode(), self.form_key(session).encode())

    def pass_for(self, caller: Caller, address: str, asked: str) -> str:
        """For the neighbour at `address` that is asked for `asked`, a path with its query; of use nowhere else."""
        return self._signer(address, asked).sign(f"{caller.name}.{int(self.now_s()) + _PASS_S}").decode()

    def by_pass(self, text: str, asked: str) -> Caller | None:
        """It may read, whoever sent it."""
        try:
            name, end_s = self._signer(self._address, asked).unsign(text).decode().split(".")
        except BadSignature:
            return None
        is_good = name in self._tokens and self.now_s() < int(end_s)
        return Caller(name, "read", is_passed=True) if is_good else None

    def _signer(self, address: str, asked: str) -> Signer:
        salt = f"pass {address} {asked}".encode()
        return Signer(self._key, salt=salt, key_derivation="hmac", digest_method=hashlib.sha256)
