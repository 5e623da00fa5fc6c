"""Timers from asyncio: the methods of `TimerProducer` as coroutines.

    async with AsyncTimerProducer(TimerProducer({"bootstrap.servers": "localhost:9092"})) as timers:
        sent = await timers.schedule("orders", b"hello", delay="5s")
        await asyncio.gather(*(timers.cancel(id_) for id_ in ids))

confluent_kafka's AIOProducer refuses headers (as of 2.16), so this client uses the producer without asyncio.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kafka_timer.errors import BridgeError
from kafka_timer.producer import M, TimerOperator, TimerProducer
from kafka_timer.requests import Sent
from kafka_timer.retry import belongs_to

if TYPE_CHECKING:
    from typing import Self  # new in Python 3.11

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def _one(sent: Future[T]) -> T:
    return await asyncio.wrap_future(sent)


async def _all(sent: list[Future[T]]) -> list[T]:
    return list(await asyncio.gather(*map(asyncio.wrap_future, sent)))


def _async(
    method: Callable[Concatenate[Any, P], S], wait: Callable[[S], Coroutine[Any, Any, T]]
) -> "Callable[Concatenate[AsyncTimerProducer, P], Coroutine[Any, Any, T]]":
    """Return a coroutine function that calls `method` and waits for its futures."""

    @wraps(method)
    async def send(self: "AsyncTimerProducer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await wait(await self.call(method, *args, **kwargs))

    return send


class AsyncTimerProducer:
    """Calls a `TimerProducer` on one thread, so that requests keep the order in which their coroutines start.

    `schedule`, `replace`, `cancel`, `move`, `release`, `pause_timer`, `resume_timer`, `retry_later`,
    `cancel_everywhere` and `replace_everywhere` take the arguments of `TimerProducer`'s methods. A coroutine returns
    the position of the acknowledged request, or a list of them, or raises BridgeError. If the coroutine is cancelled,
    its request may have been sent: cancel the timer by its id. `outcome` and `answer` return the Outcome. Later calls
    wait for `replace_everywhere` and `flush`.
    """

    def __init__(self, timers: TimerProducer) -> None:
        """`timers` belongs to this object from now on, which closes it."""
        self._timers = timers
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "timer-client-calls")

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close(self._timers.error_close_s)

    schedule = _async(TimerProducer.schedule, _one)
    replace = _async(TimerProducer.replace, _one)
    cancel = _async(TimerProducer.cancel, _one)
    move = _async(TimerProducer.move, _one)
    release = _async(TimerProducer.release, _one)
    pause_timer = _async(TimerProducer.pause_timer, _one)
    resume_timer = _async(TimerProducer.resume_timer, _one)
    retry_later = _async(TimerProducer.retry_later, _one)
    replace_everywhere = _async(TimerProducer.replace_everywhere, _all)
    outcome = _async(TimerProducer.outcome, _one)
    answer = _async(TimerProducer.answer, _one)
    cancel_everywhere = _async(TimerProducer.cancel_everywhere, _all)

    async def handle(
        self, message: M, work: Callable[[M], Awaitable[object]], *, group: str, **retry: Any
    ) -> Sent | None:
        """Await `work(message)`: see `TimerProducer.handle`. `retry`: `topic` and `policy`."""
        if not belongs_to(message, group):
            return None
        try:
            await work(message)
        except Exception as error:  # noqa: BLE001  (after any error, the message must not be lost)
            return await self.retry_later(message, group=group, error=error, **retry)
        return None

    async def call(self, method: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the producer, such as `TimerProducer.partition_of`, on the thread."""
        bound = partial(method, self._timers, *args, **kwargs)
        if self._is_closed:
            raise BridgeError("this client is closed: make a new one")
        return await asyncio.get_running_loop().run_in_executor(self._thread, bound)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all is acknowledged. Raises BridgeError if a request since the last flush was refused.

        Also if the coroutine of that request has raised it.
        """
        await self.call(TimerProducer.flush, timeout_s)

    @property
    def is_broken(self) -> bool:
        """True after a fatal error of its Kafka client: all coroutines raise, so create a new producer."""
        return self._timers.is_broken

    async def close(self, timeout_s: float | None = None) -> None:
        """Close it: see `TimerProducer.close`."""
        self._is_closed = True
        await asyncio.to_thread(self._timers.close, timeout_s)  # the thread of calls may be in a long `flush`
        self._thread.shutdown(wait=False)


class AsyncTimerOperator(AsyncTimerProducer):
    """Calls a `TimerOperator`."""

    skip = _async(TimerOperator.skip, _one)
    pause = _async(TimerOperator.pause, _all)
    resume = _async(TimerOperator.resume, _all)
