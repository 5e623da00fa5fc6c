"""Run an action on one timer or target topic: send its requests, wait for their receipts, write the audit log."""

import asyncio

from bridge.http.api.actions import Action
from bridge.http.api.requests import ActionAsked, ReceiptsAsked
from bridge.http.api.responses import Acted, LatestReceipts
from bridge.http.api.timer_requests import RequestSender, SendProgress
from bridge.http.auth import audit_log as audit
from bridge.http.auth.sessions import Caller


class TimerActions:
    """`timer_topics`: the setting `timer_topic` first."""

    def __init__(self, requests: RequestSender, timer_topics: tuple[str, ...]) -> None:
        self._requests = requests
        self._timer_topics = timer_topics

    async def act(self, caller: Caller, action: Action, asked: ActionAsked) -> Acted:
        """Raises BridgeError (503), ValueError (400)."""
        with audit.logged_action(caller, action.name, asked.model_dump(exclude_none=True)) as results:
            progress = SendProgress()
            results["sent"] = progress.sent
            requests = dict.fromkeys(self._topics_for(action, asked), lambda timers: action.send(timers, asked))
            sent = await asyncio.to_thread(self._requests.send, requests, progress, has_receipts=action.has_receipts)
            acted = Acted(action=action.name, **sent._asdict())
            results.update(acted.model_dump(exclude={"action"}))
        return acted

    async def receipts(self, asked: ReceiptsAsked) -> LatestReceipts:
        """Raises BridgeError (503)."""
        return await asyncio.to_thread(self._requests.latest_receipts, asked.name())

    def _topics_for(self, action: Action, asked: ActionAsked) -> tuple[str, ...]:
        topics, named = self._timer_topics, asked.timer_topic
        if named is None:
            return topics if action.about == "topic" else topics[:1]
        if named not in topics:
            raise ValueError(f"{named} is not a timer topic of this bridge: give one of {', '.join(topics)}")
        return (named,)
