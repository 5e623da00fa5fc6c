"""Look up values decoded by a schema registry and an audit's verdicts, in processes of their own.

A process reads its question from standard input, with little memory and time: a few bytes of Avro can name an array of
billions, and no sender may hold up the bridge.
"""

import asyncio
import base64
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bridge.config.secret_file import read_private
from bridge.page.decode_value import schema_id
from bridge.page.rendering import hex_dump, value_text
from bridge.query.search import Content

_TIMEOUT_S = 10.0
_MOST_AT_ONCE = 2
_MOST_ORIGINS = 100


class ChildProgram:
    """Answer questions by `answer` of `module`, in a process for each; at most two run at a time."""

    def __init__(self, module: str) -> None:
        code = f"import json, sys; from {module} import answer; json.dump(answer(json.load(sys.stdin)), sys.stdout)"
        self._command = (sys.executable, "-c", code)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return its answer as JSON; None if it failed, or was ended after 10 s."""
        async with self._slots:
            child = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    told, _ = await child.communicate(json.dumps(asked).encode())
            except TimeoutError:
                return None
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
        return json.loads(told) if child.returncode == 0 else None


class AuditTables:
    """Where and when timers were delivered, and the audit's verdicts on them.

    place: the audit's --out, a folder or a URI that pyarrow reads (s3, gs, hdfs).
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._reader = ChildProgram("bridge.page.find_verdicts")

    async def verdicts_of(self, origins: Iterable[str]) -> dict[str, Any]:
        """Return rows of the table `requests` as `verdicts`, or a `reason` why there are none."""
        asked = {"place": self._place, "origins": sorted(set(origins))[:_MOST_ORIGINS]}
        return await self._reader.ask(asked) or {"reason": "no answer within 10 s: ask the tables themselves"}


class SchemaRegistry:
    """url: http or https. auth_file: a private file with user:password. Raises SettingsError if it cannot be used."""

    def __init__(self, url: str, auth_file: Path | None = None) -> None:
        self._url = url
        self._auth_file = auth_file
        self._auth()
        self._decoder = ChildProgram("bridge.page.decode_value")

    async def text_of(self, content: Content) -> tuple[str, str]:
        """Return how the value is shown, and its text, as `value_text` does."""
        raw = base64.b64decode(content.base64 or "") if content.text is None else content.text.encode()
        if content.is_cut or schema_id(raw) is None:
            return value_text(content)
        asked = {"url": self._url, "auth": self._auth(), "value": base64.b64encode(raw).decode()}
        answer = await self._decoder.ask(asked) or {"reason": "it takes more than 1 GB of memory, or too long"}
        if "reason" in answer:
            return f"hex, as it could not be decoded: {answer['reason']}", hex_dump(raw)
        return answer["kind"], answer["text"]

    def _auth(self) -> str | None:
        return None if self._auth_file is None else read_private(self._auth_file, "schema_registry_auth").strip()
