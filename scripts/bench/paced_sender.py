"""`paced_sender SERVERS TOPIC TARGETS PER_S SECONDS DELAY_MS BODY_BYTES`: send timers, each due DELAY_MS later.

TARGETS: names with commas between them, in turn; each timer has a key if there are several, so that it may go to any
partition. Print the seconds that it took. If it is behind its pace, it sends as fast as it can.
"""

import sys
import time
from collections.abc import Sequence

from scripts.common.kafka_io import TimerSender, now_ms, timer


def main(words: Sequence[str]) -> None:
    servers, topic, targets, per_s, seconds, delay, body_bytes = words
    names, delay_ms, body = targets.split(","), int(delay), b"." * int(body_bytes)
    has_keys, numbers = len(names) > 1, range(round(int(per_s) * float(seconds)))
    timers = (timer(names[n % len(names)], now_ms() + delay_ms, body, b"%d" % n if has_keys else None) for n in numbers)
    begin_s = time.perf_counter()
    TimerSender(servers).send_all(topic, timers, int(per_s))
    print(time.perf_counter() - begin_s)


if __name__ == "__main__":
    main(sys.argv[1:])
