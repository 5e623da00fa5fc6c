"""The client from asyncio, over an outbox in memory."""

import asyncio
from concurrent.futures import Future
from threading import get_ident

import pytest

from kafka_timer import BridgeError, Headers, Sent, TimerOperator, TimerProducer, partition_for
from kafka_timer.aio import AsyncTimerOperator

PARTITIONS = 4


class Outbox:
    """Acknowledges at once; `hold` makes it wait for `acknowledge`. Refuses values that begin with `bad`."""

    is_broken = False

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, bytes | None, bytes | None]] = []
        self.headers: list[Headers] = []
        self.threads: set[int] = set()
        self.held: list[tuple[Future[Sent], Sent]] = []
        self.hold = False
        self.ended: list[str] = []

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        self.threads.add(get_ident())
        future: Future[Sent] = Future()
        future.set_running_or_notify_cancel()
        self.sent.append((topic, partition, key, value))
        self.headers.append(headers)
        if value is not None and value.startswith(b"bad"):
            future.set_exception(BridgeError(f"{topic}: refused"))
        elif self.hold:
            self.held.append((future, Sent(topic, partition, len(self.sent) - 1)))
        else:
            future.set_result(Sent(topic, partition, len(self.sent) - 1))
        return future

    def partitions(self, topic: str) -> int:
        return PARTITIONS

    def acknowledge(self) -> None:
        for future, sent in self.held:
            future.set_result(sent)

    def flush(self, timeout_s: float | None) -> None:
        self.ended.append("flushed")

    def close(self, timeout_s: float | None = None) -> None:
        self.ended.append("closed")


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def client(outbox: Outbox) -> AsyncTimerOperator:
    return AsyncTimerOperator(TimerOperator({}, outbox=outbox))


def test_a_coroutine_returns_the_position_or_raises_and_the_end_flushes_and_closes(outbox: Outbox) -> None:
    async def main() -> None:
        async with client(outbox) as timers:
            sent: Sent = await timers.schedule("orders", b"v", delay="5s", id="7")
            assert sent == ("timer.requests", partition_for("7", PARTITIONS), 0)
            assert (await timers.cancel(sent)).partition == sent.partition
            with pytest.raises(BridgeError, match="refused"):
                await timers.schedule("orders", b"bad", delay="0")
            with pytest.raises(ValueError, match="one of at, delay and level"):
                await timers.schedule("orders", b"v")
            everywhere: list[Sent] = await timers.cancel_everywhere("7")
            assert [each.partition for each in everywhere] == list(range(PARTITIONS))
            assert [each.topic for each in await timers.pause("orders")] == ["timer.control"]
            assert await timers.call(TimerProducer.partition_of, "7") == sent.partition

    asyncio.run(main())
    assert outbox.ended == ["flushed", "closed"]


def test_requests_keep_the_order_in_which_they_start(outbox: Outbox) -> None:
    async def main() -> None:
        async with client(outbox) as timers:
            await asyncio.gather(*(timers.schedule("orders", b"%d" % number, delay="0") for number in range(200)))

    asyncio.run(main())
    assert [value for *_, value in outbox.sent] == [b"%d" % number for number in range(200)]
    assert len(outbox.threads) == 1
    assert get_ident() not in outbox.threads


def test_many_requests_wait_at_a_time_and_a_cancelled_wait_disturbs_no_other(outbox: Outbox) -> None:
    async def main() -> None:
        outbox.hold = True
        async with client(outbox) as timers:
            waits = [asyncio.create_task(timers.schedule("orders", b"%d" % number, delay="0")) for number in range(10)]
            while len(outbox.held) < 10:
                await asyncio.sleep(0.001)
            waits[3].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits[3]
            outbox.acknowledge()
            assert [(await wait).offset for wait in waits if wait is not waits[3]] == [0, 1, 2, *range(4, 10)]

    asyncio.run(main())
