"""Ask a program of ours on standard input and output: it takes memory and time of its own, not the bridge's."""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 10.0
_MOST_AT_ONCE = 2


class ChildProgram:
    """`module` is run with python -m, once for each question; at most two run at a time."""

    def __init__(self, module: str) -> None:
        self._command = (sys.executable, "-m", module)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return its answer as JSON; None if it failed, or was ended after 10 s."""
        async with self._slots:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    told, _ = await child.communicate(json.dumps(asked).encode())
            except TimeoutError:
                return None
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
        if child.returncode != 0:
            return None
        found: dict[str, Any] = json.loads(told)
        return found
