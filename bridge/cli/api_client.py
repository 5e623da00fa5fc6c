"""One bridge that runs, asked by HTTP: its answer as a model, or an error that says what to do."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from bridge.errors import BridgeError, SettingsError

Answer = TypeVar("Answer", bound=BaseModel)

_UNAUTHORIZED, _NOT_FOUND, _NOT_READY = 401, 404, 503
_REDIRECTS = range(300, 400)


class _Refused(BaseModel):
    reason: str


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Report a redirect as an HTTPError: following it would send the token to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


class RunningBridge:
    """At `url`, started with the option `needed`. Every question raises BridgeError, a wrong `url` SettingsError."""

    def __init__(self, url: str, needed: str, token: str | None = None, *, within_s: float = 30.0) -> None:
        if not _is_url(url):
            raise SettingsError(f"--url {url}: write http://host:port")
        self._url = url.rstrip("/")
        self._needed = needed
        self._within_s = within_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)  # no proxy either

    def get(self, path: str, asked: Mapping[str, str], kind: type[Answer]) -> Answer:
        """That nothing is found is an answer too, and that not all was looked at."""
        where = f"{self._url}{path}?{urlencode(asked)}"
        request = urllib.request.Request(where, headers=self._headers)  # noqa: S310  (http or https, as checked)
        return self._answer(request, kind, {_NOT_FOUND, _NOT_READY})

    def post(self, path: str, asked: Mapping[str, Any], kind: type[Answer]) -> Answer:
        headers = self._headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(asked).encode(), headers)  # noqa: S310
        return self._answer(request, kind, set())

    def _answer(self, request: urllib.request.Request, kind: type[Answer], answers: set[int]) -> Answer:
        """A refusal whose code is among `answers` is one too, where it has the form of one."""
        refused, text = self._heard(request)
        if refused is not None and refused.code not in answers:
            raise BridgeError(f"{self._url}: {self._reason(refused, text)}") from refused
        try:
            return kind.model_validate_json(text)
        except ValidationError as wrong:
            if refused is not None:
                raise BridgeError(f"{self._url}: {self._reason(refused, text)}") from refused
            raise self._stranger("it does not answer as a bridge does") from wrong

    def _heard(self, request: urllib.request.Request) -> tuple[urllib.error.HTTPError | None, bytes]:
        try:
            try:
                with self._opener.open(request, timeout=self._within_s) as answer:
                    return None, answer.read()
            except urllib.error.HTTPError as refused:
                return refused, refused.read()
        except OSError as wrong:
            why = wrong.reason if isinstance(wrong, urllib.error.URLError) else wrong
            raise self._stranger(why.strerror if isinstance(why, OSError) and why.strerror else why) from wrong
        except HTTPException as wrong:  # it speaks something else, or breaks off; or the url is none
            raise self._stranger(repr(wrong)) from wrong

    def _reason(self, refused: urllib.error.HTTPError, text: bytes) -> str:
        if refused.code == _UNAUTHORIZED:
            return "give a token of it in a file, --token-file"
        if refused.code in _REDIRECTS:
            return f"answered {refused.code}, redirects are not followed; give --url the address of the bridge itself"
        try:
            return _Refused.model_validate_json(text).reason
        except ValidationError:
            return f"{refused}: start it with {self._needed}"

    def _stranger(self, why: object) -> BridgeError:
        return BridgeError(f"{self._url}: {why}: is a bridge running there, with {self._needed}?")
