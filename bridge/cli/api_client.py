"""HTTP client of one running bridge. Answers are pydantic models, errors say what to do."""

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


class _ErrorBody(BaseModel):
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


class ApiClient:
    """Client of the bridge at `url`. Requests raise BridgeError; a malformed `url` raises SettingsError.

    required_option: what the bridge has to be started with, for error texts.
    """

    def __init__(self, url: str, required_option: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        if not _is_url(url):
            raise SettingsError(f"--url {url}: write http://host:port")
        self._url = url.rstrip("/")
        self._required_option = required_option
        self._timeout_s = timeout_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)  # no proxy either

    def get(self, path: str, asked: Mapping[str, str], kind: type[Answer]) -> Answer:
        """Return the answer of a GET; 404 and 503 are answers too if their body is one."""
        full_url = f"{self._url}{path}?{urlencode(asked)}"
        request = urllib.request.Request(full_url, headers=self._headers)  # noqa: S310  (http or https, as checked)
        return self._parse(request, kind, {_NOT_FOUND, _NOT_READY})

    def post(self, path: str, asked: Mapping[str, Any], kind: type[Answer]) -> Answer:
        headers = self._headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(asked).encode(), headers)  # noqa: S310
        return self._parse(request, kind, set())

    def _parse(self, request: urllib.request.Request, kind: type[Answer], answer_codes: set[int]) -> Answer:
        """Parse the body as `kind`, also after an HTTP error whose status is in `answer_codes`."""
        http_error, text = self._fetch(request)
        if http_error is not None and http_error.code not in answer_codes:
            raise BridgeError(f"{self._url}: {self._reason(http_error, text)}") from http_error
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            if http_error is not None:
                raise BridgeError(f"{self._url}: {self._reason(http_error, text)}") from http_error
            raise self._not_a_bridge("it does not answer as a bridge does") from error

    def _fetch(self, request: urllib.request.Request) -> tuple[urllib.error.HTTPError | None, bytes]:
        try:
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return None, answer.read()
            except urllib.error.HTTPError as http_error:
                return http_error, http_error.read()
        except OSError as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            text = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
            raise self._not_a_bridge(text) from error
        except HTTPException as error:  # another protocol, an answer that breaks off, or an invalid URL
            raise self._not_a_bridge(repr(error)) from error

    def _reason(self, http_error: urllib.error.HTTPError, text: bytes) -> str:
        if http_error.code == _UNAUTHORIZED:
            return "give a token of it in a file, --token-file"
        if http_error.code in _REDIRECTS:
            return (
                f"answered {http_error.code}, redirects are not followed; give --url the address of the bridge itself"
            )
        try:
            return _ErrorBody.model_validate_json(text).reason
        except ValidationError:
            return f"{http_error}: start it with {self._required_option}"

    def _not_a_bridge(self, why: object) -> BridgeError:
        return BridgeError(f"{self._url}: {why}: is a bridge running there, with {self._required_option}?")
