"""HTTP client of one running bridge. Answers are pydantic models, errors say what to do."""

import json
from collections.abc import Container, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection, responses
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from bridge.errors import BridgeError, SettingsError

Answer = TypeVar("Answer", bound=BaseModel)

_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


class _ErrorBody(BaseModel):
    reason: str


class ApiClient:
    """Client of the bridge at `url`. Requests raise BridgeError; a malformed `url` raises SettingsError.

    It follows no redirect, which would send the token to another host, and uses no proxy.
    required_option: what the bridge has to be started with, for error texts.
    """

    def __init__(self, url: str, required_option: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        try:
            parts = urlsplit(url)
            if not parts.hostname or parts.port == 0:
                raise ValueError(url)
            self._connect = partial(_CONNECTIONS[parts.scheme], parts.hostname, parts.port, timeout=timeout_s)
        except (ValueError, KeyError):
            raise SettingsError(f"--url {url}: write http://host:port") from None
        self._url = url.rstrip("/")
        self._base_path = parts.path.rstrip("/")
        self._required_option = required_option
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def get(self, path: str, asked: Mapping[str, str], kind: type[Answer]) -> Answer:
        """Return the answer of a GET; 404 and 503 are answers too if their body is one."""
        return self._ask("GET", f"{path}?{urlencode(asked)}", None, kind, (200, 404, 503))

    def post(self, path: str, asked: Mapping[str, Any], kind: type[Answer]) -> Answer:
        return self._ask("POST", path, json.dumps(asked), kind, (200,))

    def _ask(self, method: str, path: str, body: str | None, kind: type[Answer], answers: Container[int]) -> Answer:
        """Return the body as `kind`. Any status that is not in `answers` is an error."""
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        try:
            with closing(self._connect()) as connection:
                connection.request(method, self._base_path + path, body, headers)
                response = connection.getresponse()
                status, text = response.status, response.read()
        except OSError as error:
            raise self._not_a_bridge(error.strerror or error) from error
        except HTTPException as error:  # another protocol, an answer that breaks off, or an invalid URL
            raise self._not_a_bridge(repr(error)) from error
        if status in answers:
            try:
                return kind.model_validate_json(text)
            except ValidationError as error:
                if status == 200:
                    raise self._not_a_bridge("it does not answer as a bridge does") from error
        raise BridgeError(f"{self._url}: {self._reason(status, text)}")

    def _reason(self, status: int, text: bytes) -> str:
        if status == 401:
            return "it needs one of its tokens; give it in a file, --token-file"
        if 300 <= status < 400:
            return f"answered {status}, redirects are not followed; give --url the address of the bridge itself"
        try:
            return _ErrorBody.model_validate_json(text).reason
        except ValidationError:
            return f"HTTP Error {status}: {responses.get(status, '')}: start it with {self._required_option}"

    def _not_a_bridge(self, why: object) -> BridgeError:
        return BridgeError(f"{self._url}: {why}: is a bridge running there, with {self._required_option}?")
