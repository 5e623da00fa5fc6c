"""`paced_sender SERVERS TOPIC TARGETS PER_S SECONDS DELAY_MS BODY_BYTES`: send timers, each due DELAY_MS later.

TARGETS: names with commas between them, in turn; each timer has a key if there are several, so that it may go to any
partition. Print the seconds that it took. If it is behind its pace, it sends as fast as it can.
"""

import sys
import time
from collections.abc import Sequence

from scripts.common.kafka_io import TimerSender, timer

_STEP_S = 0.002


def main(words: Sequence[str]) -> None:
    servers, topic, targets, per_s, seconds, delay_ms, body_bytes = words
    sender, names, body = TimerSender(servers), targets.split(","), b"." * int(body_bytes)
    begin_s, sent, count = time.perf_counter(), 0, round(int(per_s) * float(seconds))
    while sent < count:
        due_now = min(count, int((time.perf_counter() - begin_s) * int(per_s)) + 1)
        due_ms = time.time_ns() // 1_000_000 + int(delay_ms)
        for _ in range(min(due_now - sent, 200)):
            key = b"%d" % sent if len(names) > 1 else None
            sender.send(topic, timer(names[sent % len(names)], due_ms, body, key))
            sent += 1
        sender.serve()
        if sent >= due_now:
            time.sleep(_STEP_S)
    sender.flush()
    print(time.perf_counter() - begin_s)


if __name__ == "__main__":
    main(sys.argv[1:])
