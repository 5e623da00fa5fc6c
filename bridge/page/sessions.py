"""Tokens from files, and what is derived from them: sessions, CSRF keys and peer tokens, which do not reveal a token.

    tokens file       ops-ada:sha256:9f86...   one a line, made by `timer-bridge token ops-ada`; or name:token;
                                               without a name, that of the file
    API               Authorization: Bearer <token>
    page              a cookie with a random session id; sessions are in memory, until logout or 8 h
    trusted proxy     a header with the user whom it logged in, from its address alone (guard.caller_without_token)
    peer              Authorization: Pass <name>.<end>.<signature>, for one read at one address, 30 s long

Without tokens every client may do everything, so that is allowed on loopback only (bridge.config.settings).
After too many wrong tokens, none is checked until the minute ends.
"""

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal, NamedTuple

from itsdangerous import BadSignature, Signer

from bridge.config.http_address import own_address
from bridge.config.secret_file import HASHED, NAME, digest_of, read_private
from bridge.config.settings import Settings
from bridge.errors import SettingsError
from bridge.observe.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)

MINUTE_S = 60
MAX_WRONG_PER_ADDRESS = 10
"""Most wrong tokens from one address in a minute: enough for typing errors, and for a script with an old token."""
MAX_WRONG_TOTAL = 100
"""Most wrong tokens from all addresses in a minute, against guessing from many addresses."""
_MAX_TRUSTED = 1000
Role = Literal["read", "operate"]
SESSION_S = 8 * 3600
MAX_SESSIONS = 1000
"""Beyond that the oldest session ends."""
_PEER_TOKEN_S = 30
_MIN_TOKEN_CHARS = 16
_DIGEST = re.compile(rf"{HASHED}([0-9a-f]{{64}})")


class WrongTokens:
    """Count wrong tokens by address. Memory is bounded: counts last a minute, and their sum is limited.

    An address that has sent a right token is exempt from the total limit, so others cannot lock it out.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._minute = 0
        self._wrong: Counter[str] = Counter()
        self._trusted: dict[str, None] = {}

    def wait_s(self, address: str) -> int:
        """Return the seconds until `address` may try again, 0 if it may now."""
        minute, second = divmod(int(self._now_s()), MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        is_over_total = self._wrong.total() >= MAX_WRONG_TOTAL and address not in self._trusted
        return MINUTE_S - second if is_over_total or self._wrong[address] >= MAX_WRONG_PER_ADDRESS else 0

    def count(self, address: str, *, is_right: bool) -> None:
        if not is_right:
            self._wrong[address] += 1
            return
        self._trusted.pop(address, None)
        self._trusted[address] = None
        if len(self._trusted) > _MAX_TRUSTED:
            del self._trusted[next(iter(self._trusted))]


class Token(NamedTuple):
    """`digest`: SHA-256 of the token."""

    name: str
    role: Role
    digest: bytes
    is_hashed: bool = False
    """True if the file holds only the digest."""


class Caller(NamedTuple):
    """The sender of a request, and its address. `is_from_peer`: another instance sent it for the caller."""

    name: str
    role: Role
    address: str = ""
    is_from_peer: bool = False

    @property
    def may_operate(self) -> bool:
        return self.role == "operate"


class TrustedProxy(NamedTuple):
    """A proxy that logs users in and names them in `header`. operators: patterns of users who may operate."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    header: str
    operators: tuple[str, ...] = ()

    def caller(self, user: str, address: str) -> Caller:
        may_operate = any(fnmatchcase(user, pattern) for pattern in self.operators)
        return Caller(user, "operate" if may_operate else "read", address)


ANONYMOUS = Caller("anybody", "operate")


def read_tokens(path: Path, role: Role) -> list[Token]:
    """Read a tokens file. Raises SettingsError, never with the content of the file."""
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
    if secret.startswith(HASHED) or len(secret) < _MIN_TOKEN_CHARS:
        raise SettingsError(
            f"tokens {path}, line {number}: no {HASHED} with 64 hexadecimal digits, and as a token shorter than"
            f" {_MIN_TOKEN_CHARS} characters; make a line with `timer-bridge token NAME`"
        )
    return Token(name, role, digest_of(secret))


def peer_key(tokens: Iterable[Token]) -> bytes:
    """Return the key, derived from all `tokens`, that instances sign peer tokens with.

    A peer token goes to any address that a member announces. scrypt slows down guessing the secret: 32 MB, 0.1 s a try.
    """
    source = b"".join(sorted(each.digest for each in tokens))
    return hashlib.scrypt(source, salt=b"timer-bridge peers", n=1 << 15, r=8, p=1, maxmem=64 << 20, dklen=32)


@dataclass(eq=False, repr=False)  # no log line may show the key
class Authenticator:
    """Authenticate callers by token, session or peer token.

    now_s: epoch seconds, synchronized across instances. address: our advertised one. key: see `peer_key`.
    Raises SettingsError if two tokens have the same name.
    """

    tokens: Iterable[Token]
    now_s: Callable[[], float]
    address: str = ""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    proxy: TrustedProxy | None = None

    def __post_init__(self) -> None:
        self.wrong_tokens = WrongTokens(self.now_s)
        self.warnings = LogRateLimit(log)
        self._tokens: dict[str, Token] = {}
        self._sessions: dict[str, tuple[Caller, float]] = {}
        self._form_key = secrets.token_bytes(32)
        for token in self.tokens:
            if token.name in self._tokens:
                raise SettingsError(f"tokens: two are named {token.name}: the audit log could not tell who it was")
            self._tokens[token.name] = token

    @property
    def is_open(self) -> bool:
        return not self._tokens and self.proxy is None

    def caller_by_token(self, secret: str) -> Caller | None:
        """Return who has this token, in constant time."""
        given = digest_of(secret)
        found = [each for each in self._tokens.values() if hmac.compare_digest(each.digest, given)]
        return Caller(found[-1].name, found[-1].role) if found else None

    def log_in(self, caller: Caller) -> str:
        """Return the id of a new session."""
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        id_ = secrets.token_urlsafe(32)
        self._sessions[id_] = caller, self.now_s() + SESSION_S
        return id_

    def log_out(self, session: str) -> None:
        self._sessions.pop(session, None)

    def caller_by_session(self, session: str) -> Caller | None:
        caller, end_s = self._sessions.get(session, (None, 0))
        return caller if self.now_s() < end_s else None

    def form_key(self, session: str) -> str:
        """Return the CSRF token of the session, a hidden field of each form."""
        return hmac.new(self._form_key, session.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, text: str, session: str) -> bool:
        return hmac.compare_digest(text.encode(), self.form_key(session).encode())

    def sign_peer_token(self, caller: Caller, address: str, path_query: str) -> str:
        """Return a token for one read, `path_query`, at the peer `address`; it is valid nowhere else."""
        return self._signer(address, path_query).sign(f"{caller.name}.{int(self.now_s()) + _PEER_TOKEN_S}").decode()

    def verify_peer_token(self, text: str, path_query: str, sender: str = "") -> Caller | None:
        """Return its caller, who may only read, or None if the token is not valid."""
        try:
            name, _, end_s = self._signer(self.address, path_query).unsign(text).decode().rpartition(".")
        except BadSignature:
            return None
        is_good = (name in self._tokens or self.proxy is not None) and self.now_s() < int(end_s)
        return Caller(name, "read", sender, is_from_peer=True) if is_good else None

    def _signer(self, address: str, path_query: str) -> Signer:
        salt = f"pass {address} {path_query}".encode()
        return Signer(self.key, salt=salt, key_derivation="hmac", digest_method=hashlib.sha256)


def access_of(settings: Settings) -> Authenticator:
    """Read the tokens files. Raises SettingsError."""
    files: dict[Role, Path | None] = {"read": settings.page_read_tokens, "operate": settings.page_operator_tokens}
    tokens = [token for role, path in files.items() if path is not None for token in read_tokens(path, role)]
    if settings.page_secret is not None:
        key = peer_key(read_tokens(settings.page_secret, "read"))
    elif any(each.is_hashed for each in tokens):
        raise SettingsError(
            "page_secret: missing, though a tokens file holds hashes, by which instances cannot sign for each other;"
            " give all instances one file with the output of `openssl rand -hex 32`"
        )
    else:
        key = peer_key(tokens)
    proxy = TrustedProxy(settings.page_proxy, settings.page_proxy_header, settings.page_proxy_operators)
    return Authenticator(tokens, time.time, own_address(settings), key, proxy if settings.page_proxy else None)
