"""Print the first committed records of a topic, with their headers.

python -m examples.reader --bootstrap-servers localhost:9092 --topic orders --count 1
"""

import argparse
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=1)
    given = parser.parse_args()
    reader: Any = Consumer(
        {
            "bootstrap.servers": given.bootstrap_servers,
            "group.id": f"reader-{uuid4().hex}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",  # else you see aborted deliveries, and so duplicates
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([given.topic])
    left = given.count
    while left > 0:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            left -= 1
            print((message.value() or b"").decode(errors="replace"), dict(message.headers() or ()), flush=True)
    reader.close()


if __name__ == "__main__":
    main()
