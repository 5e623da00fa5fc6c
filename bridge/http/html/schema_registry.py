"""Values that name their schema, decoded by a schema registry.

Each is decoded by a process of its own with little memory and time: a few bytes of Avro can name an array of billions,
and no sender may hold up the bridge.
"""

import base64
from pathlib import Path

from bridge.config.secret_file import read_private
from bridge.http.html.child_program import ChildProgram
from bridge.http.html.decode_value import schema_id
from bridge.http.html.value_text import hex_dump, value_text
from bridge.query.details import Content

_LIMITS = "it takes more than 1 GB of memory, or too long"


class SchemaRegistry:
    """url: http or https. auth_file: a private file with user:password."""

    def __init__(self, url: str, auth_file: Path | None = None) -> None:
        self._url = url
        self._auth_file = auth_file
        self._decoder = ChildProgram("bridge.http.html.decode_value")

    async def text_of(self, content: Content) -> tuple[str, str]:
        """Return how the value is shown, and its text, as `value_text` does."""
        raw = base64.b64decode(content.base64 or "") if content.text is None else content.text.encode()
        if content.is_cut or schema_id(raw) is None:
            return value_text(content)
        answer = await self._ask(raw)
        if "reason" in answer:
            return f"hex, as it could not be decoded: {answer['reason']}", hex_dump(raw)
        return answer["kind"], answer["text"]

    async def _ask(self, raw: bytes) -> dict[str, str]:
        auth = None if self._auth_file is None else read_private(self._auth_file, "schema_registry_auth").strip()
        asked = {"url": self._url, "auth": auth, "value": base64.b64encode(raw).decode()}
        return await self._decoder.ask(asked) or {"reason": _LIMITS}
