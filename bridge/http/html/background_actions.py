"""Actions on selections that go on after the answer: the page shows how far they are.

    POST /selection/cancel -> start() -> ended within PROMPT_S: its result
                                      -> else a name, and GET /selection/progress?action=<name> until it has ended

The latest `MAX_KEPT` that have ended can be shown. The audit log has the results of all.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.http.api.actions import Action
from bridge.http.api.responses import ActedOnSelection
from bridge.http.api.selections import SelectionProgress

PROMPT_S = 2.0
MAX_KEPT = 100


@dataclass
class BackgroundAction:
    """`selector`: as the page's form gave it."""

    action: Action
    selector: dict[str, str]
    task: "asyncio.Task[ActedOnSelection]"
    progress: SelectionProgress
    name: str = field(default_factory=lambda: secrets.token_urlsafe(16))


class BackgroundActions:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, BackgroundAction] = {}

    async def start(
        self,
        action: Action,
        selector: dict[str, str],
        act: Callable[[SelectionProgress], Awaitable[ActedOnSelection]],
    ) -> BackgroundAction:
        """Start `act`, and wait for its end at most PROMPT_S."""
        progress = SelectionProgress()
        task = asyncio.ensure_future(act(progress))
        started = BackgroundAction(action, selector, task, progress)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # the audit log has it
        self._kept[started.name] = started
        for old in [name for name, each in self._kept.items() if each.task.done()][:-MAX_KEPT]:
            del self._kept[old]
        await asyncio.wait([task], timeout=PROMPT_S)
        return started

    def get(self, name: str) -> BackgroundAction | None:
        return self._kept.get(name)
