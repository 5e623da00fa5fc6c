"""`paced_sender SERVERS TOPIC TARGET PER_S SECONDS DELAY_MS BODY_BYTES`: send timers, each due DELAY_MS later.

Print the seconds that it took. If it is behind its pace, it sends as fast as it can.
"""

import sys
import time
from collections.abc import Sequence

from scripts.common.kafka_io import TimerSender, timer

_STEP_S = 0.002


def send_at_rate(
    sender: TimerSender, topic: str, target: str, per_s: int, seconds: float, delay_ms: int, body: bytes
) -> float:
    """Return the seconds that it took."""
    begin_s, sent, count = time.perf_counter(), 0, round(per_s * seconds)
    while sent < count:
        due_now = min(count, int((time.perf_counter() - begin_s) * per_s) + 1)
        due_ms = time.time_ns() // 1_000_000 + delay_ms
        for _ in range(min(due_now - sent, 200)):
            sender.send(topic, timer(target, due_ms, body))
            sent += 1
        sender.serve()
        if sent >= due_now:
            time.sleep(_STEP_S)
    sender.flush()
    return time.perf_counter() - begin_s


def main(words: Sequence[str]) -> None:
    servers, topic, target, per_s, seconds, delay_ms, body_bytes = words
    body = b"." * int(body_bytes)
    print(send_at_rate(TimerSender(servers), topic, target, int(per_s), float(seconds), int(delay_ms), body))


if __name__ == "__main__":
    main(sys.argv[1:])
