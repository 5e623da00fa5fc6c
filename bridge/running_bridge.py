"""One bridge that runs, asked by HTTP: its answer as a model, or an error that says what to do."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from bridge.errors import BridgeError, SettingsError

Answer = TypeVar("Answer", bound=BaseModel)

_UNAUTHORIZED, _NOT_FOUND = 401, 404


class _Refused(BaseModel):
    reason: str


class RunningBridge:
    """At `url`, started with the option `needed`. Every question raises BridgeError, a wrong `url` SettingsError."""

    def __init__(self, url: str, needed: str, token: str | None = None, *, within_s: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--url {url}: write http://host:port")
        self._url = url.rstrip("/")
        self._needed = needed
        self._within_s = within_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a bridge is a neighbour

    def get(self, path: str, asked: Mapping[str, str], kind: type[Answer]) -> Answer:
        """Nothing found is an answer too."""
        where = f"{self._url}{path}?{urlencode(asked)}"
        request = urllib.request.Request(where, headers=self._headers)  # noqa: S310  (http or https, as checked)
        return self._answer(request, kind, {_NOT_FOUND})

    def post(self, path: str, asked: Mapping[str, Any], kind: type[Answer]) -> Answer:
        headers = self._headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(asked).encode(), headers)  # noqa: S310
        return self._answer(request, kind, set())

    def _answer(self, request: urllib.request.Request, kind: type[Answer], answers: set[int]) -> Answer:
        try:
            return kind.model_validate_json(self._text(request, answers))
        except ValidationError as wrong:
            raise self._stranger("it does not answer as a bridge does") from wrong

    def _text(self, request: urllib.request.Request, answers: set[int]) -> bytes:
        try:
            with self._opener.open(request, timeout=self._within_s) as answer:
                text: bytes = answer.read()
        except urllib.error.HTTPError as refused:
            text = refused.read()
            if refused.code not in answers:
                raise BridgeError(f"{self._url}: {self._reason(refused, text)}") from refused
        except OSError as wrong:
            why = wrong.reason if isinstance(wrong, urllib.error.URLError) else wrong
            raise self._stranger(why.strerror if isinstance(why, OSError) and why.strerror else why) from wrong
        return text

    def _reason(self, refused: urllib.error.HTTPError, text: bytes) -> str:
        if refused.code == _UNAUTHORIZED:
            return "give a token of it in a file, --token-file"
        try:
            return _Refused.model_validate_json(text).reason
        except ValidationError:
            return f"{refused}: start it with {self._needed}"

    def _stranger(self, why: object) -> BridgeError:
        return BridgeError(f"{self._url}: {why}: is a bridge running there, with {self._needed}?")
