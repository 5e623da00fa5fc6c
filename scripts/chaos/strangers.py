"""Hostile senders and owners of target topics, and a neighbour whose timers have to leave on time beside them.

    neighbour  20 timers a second -> its own timer topic and target, each due 2 s ahead   lateness by the broker's clock
    attack     one of ATTACKS     -> timer topic EVIL, and targets whose owner is hostile

python -m scripts.chaos.strangers headers-60 moves ...     each attack on a new broker and bridge, beside the neighbour
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bridge.errors import BridgeError
from kafka_timer import headers as names
from scripts.chaos.load import Background
from scripts.common import command
from scripts.common.delivery_figures import Lateness, late_ms, lateness
from scripts.common.kafka_io import (
    QUIET,
    Admin,
    Delivery,
    Receiver,
    TimerRequest,
    TimerSender,
    named_timer,
    now_ms,
    timer,
)
from scripts.common.processes import BridgeProcess
from scripts.common.quiet_kafka import quiet_kafka

TIMERS, EVIL, GOOD, WARM = "timer.requests", "timer.evil", "good", "warm"
CONFIG = f'[topics."{EVIL}"]\n'
_AHEAD_MS = 2_000
_REST_S = 8.0
_JOIN_S = 60.0
_WARM_UP = 60_000


def _received(bootstrap_servers: str, topic: str, count: int, wait_s: float = 120.0) -> list[Delivery]:
    """Read `topic` from its beginning until `count` have come, or for `wait_s`."""
    found, until_s = list[Delivery](), time.monotonic() + wait_s
    with Receiver(bootstrap_servers, [topic]) as receiver:
        while len(found) < count and time.monotonic() < until_s:
            found += receiver.poll(0.5)
    return found


class Neighbour(Background):
    """Sends 20 timers a second until the `with` ends."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self.sent = 0

    def _run(self) -> None:
        TimerSender(self._servers).send_all(TIMERS, self._timers(), per_s=20)

    def _timers(self) -> Iterator[TimerRequest]:
        while not self._over.is_set():
            yield timer(GOOD, now_ms() + _AHEAD_MS, b"%d" % self.sent)
            self.sent += 1

    def deliveries(self, wait_s: float = 120.0) -> tuple[int, int, Lateness]:
        """Wait for all. Return how many were delivered, how many of them twice, and their lateness."""
        found = _received(self._servers, GOOD, self.sent, wait_s)
        return len(found), len(found) - len({each.origin for each in found}), lateness(late_ms(found))


class Stage(NamedTuple):
    """Means of an attack: the brokers, a sender to EVIL, and an admin client. share: of the attack's size."""

    servers: str
    sender: TimerSender
    admin: Admin
    share: float = 1.0

    def range(self, count: int) -> range:
        return range(max(1, int(count * self.share)))

    def send(self, requests: Iterator[TimerRequest], per_s: float = 0.0) -> None:
        self.sender.send_all(EVIL, requests, per_s)

    def topic(self, **settings: str) -> str:
        name = f"hostile-{uuid4().hex[:8]}"
        renamed = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([name], partitions=1, settings=renamed)
        return name


def _header_bomb(stage: Stage, count: int, value: bytes | None) -> None:
    for number in stage.range(count):
        request = timer(GOOD, now_ms() + 1000, b"%d" % number)
        stage.send(iter([request._replace(headers=[*[("a", value)] * 99_000, *request.headers])]))


def _moves(stage: Stage) -> None:
    ids = [b"%d" % number for number in stage.range(200_000)]
    due_ms = now_ms() + 3_600_000
    stage.send(named_timer(GOOD, due_ms, b"", id_) for id_ in ids)
    move = [(names.ACTION, names.MOVE), (names.DELIVER_MS, b"%d" % (due_ms + 1))]
    stage.send(TimerRequest(id_, None, [*move, (names.ID, id_)]) for id_ in ids)


def _cancels_by_origin(stage: Stage) -> None:
    due_ms = now_ms() + 3_600_000
    stage.send(timer(GOOD, due_ms, b"") for _ in stage.range(50_000))
    origins = (b"%s/0/%d" % (EVIL.encode(), offset) for offset in stage.range(50_000))
    stage.send(TimerRequest(b"", None, [(names.ACTION, b"cancel"), (names.OF, origin)]) for origin in origins)


def _cron_rules(stage: Stage) -> None:
    rules = (b"59 23 31 2 1#5", b"* */23 */31 * 6")
    common = [(names.TOPIC, GOOD.encode()), (names.ZONE, b"Pacific/Apia")]
    stage.send(TimerRequest(None, b"", [*common, (names.CRON, rules[n % 2])]) for n in stage.range(4_000))


def _long_ids(stage: Stage) -> None:
    target, due_ms = stage.topic(), now_ms() + 20_000
    stage.send(named_timer(target, due_ms, b"", b"%01024d" % number) for number in stage.range(440_000))


def _without_key(stage: Stage, count: int, per_s: float) -> None:
    target, ahead_ms = stage.topic(cleanup_policy="compact"), 300 if per_s else 3_000
    stage.send((timer(target, now_ms() + ahead_ms, b"%d" % n) for n in stage.range(count)), per_s)


def _old_times(stage: Stage) -> None:
    target = stage.topic(message_timestamp_type="CreateTime", message_timestamp_before_max_ms="0")
    stage.send((timer(target, now_ms() + 300, b"%d" % n) for n in stage.range(1_500)), 50)


def _missing(stage: Stage, count: int, per_s: float) -> None:
    ahead_ms = 300 if per_s else 4_000
    stage.send((timer(f"missing-{n}", now_ms() + ahead_ms, b"") for n in stage.range(count)), per_s)


def _too_large(stage: Stage) -> None:
    """Half of the timers are too large for their target, in the same batches as others that fit."""
    target = stage.topic(max_message_bytes="2000")
    stage.send((timer(target, now_ms() + 300, b"x" * (10 + n % 2 * (3_000 + n))) for n in stage.range(3_000)), 300)


def _recreated(stage: Stage) -> None:
    target, over = f"again-{uuid4().hex[:8]}", threading.Event()
    client = AdminClient({"bootstrap.servers": stage.servers, **QUIET})

    def recreate() -> None:
        while not over.is_set():
            with suppress(KafkaException, BridgeError):
                stage.admin.create_topics([target], partitions=1, settings={})
            over.wait(0.5)
            with suppress(KafkaException, TimeoutError):
                client.delete_topics([target])[target].result(10)

    thread = threading.Thread(target=recreate)
    thread.start()
    try:
        stage.send((timer(target, now_ms() + 300, b"%d" % n) for n in stage.range(2_000)), 50)
    finally:
        over.set()
        thread.join(_JOIN_S)


ATTACKS: dict[str, Callable[[Stage], None]] = {
    "headers-60-null": lambda stage: _header_bomb(stage, 60, None),
    "headers-60": lambda stage: _header_bomb(stage, 60, b"ab"),
    "headers-400": lambda stage: _header_bomb(stage, 400, None),
    "moves": _moves,
    "by-origin": _cancels_by_origin,
    "cron": _cron_rules,
    "long-ids": _long_ids,
    "keyless-burst": lambda stage: _without_key(stage, 3_000, 0),
    "keyless-300": lambda stage: _without_key(stage, 9_000, 300),
    "old-times": _old_times,
    "missing-8000": lambda stage: _missing(stage, 8_000, 0),
    "missing-20000": lambda stage: _missing(stage, 20_000, 1_333),
    "too-large": _too_large,
    "recreated": _recreated,
    "none": lambda _stage: time.sleep(15),
}


class Strangers(Background):
    """Runs small attacks, drawn by `seed`, one after the other until the `with` ends. `counts`: by name.

    An attack that a fault of a broker breaks off is over.
    """

    SHARE = 0.05

    def __init__(self, bootstrap_servers: str, seed: int) -> None:
        self._servers, self._rng = bootstrap_servers, random.Random(seed)
        self.counts: Counter[str] = Counter()

    def attack(self) -> None:
        name = self._rng.choice([each for each in ATTACKS if each != "none"])
        stage = Stage(self._servers, TimerSender(self._servers), Admin(self._servers), self.SHARE)
        ATTACKS[name](stage)
        self.counts[f"attack: {name}"] += 1

    def _run(self) -> None:
        while not self._over.wait(1.0):
            with suppress(KafkaException, BridgeError):
                self.attack()


class Outcome(NamedTuple):
    """Deliveries of the neighbour, and peak memory of the bridge."""

    sent: int
    delivered: int
    twice: int
    late: Lateness
    rss_mb: float


def _warm(stage: Stage) -> None:
    """Have the broker compile what it runs, as one that has run for a day has, by timers from end to end."""
    timers = (timer(WARM, now_ms() + 1_000, b"%d" % number) for number in range(_WARM_UP))
    stage.sender.send_all(TIMERS, timers, per_s=10_000)
    _received(stage.servers, WARM, _WARM_UP)


@contextmanager
def stage_with_bridge(folder: Path, attack: str) -> Iterator[tuple[Stage, BridgeProcess]]:
    with quiet_kafka(folder / "kafka") as broker:
        admin = Admin(broker.bootstrap_servers)
        admin.create_topics([GOOD, WARM], partitions=1)
        (folder / "bridge.toml").write_text(CONFIG)
        words = ["--config", str(folder / "bridge.toml"), "--partitions", "1" if attack == "by-origin" else "4"]
        with BridgeProcess(folder, broker.bootstrap_servers, words) as bridge:
            stage = Stage(broker.bootstrap_servers, TimerSender(broker.bootstrap_servers), admin)
            _warm(stage)
            yield stage, bridge


def run_attack(stage: Stage, bridge: BridgeProcess, name: str) -> Outcome:
    """Run one attack beside the neighbour, whose first timers leave 1 s before it, and who ends 8 s after it."""
    with Neighbour(stage.servers) as neighbour:
        time.sleep(_AHEAD_MS / 1000 + 1)
        ATTACKS[name](stage)
        time.sleep(_REST_S)
    return Outcome(neighbour.sent, *neighbour.deliveries(), bridge.usage().peak_rss_mb)


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("attacks", nargs="*", help=f"all by default: {' '.join(ATTACKS)}")
    parser.add_argument("--folder", type=Path, default=Path(".run/strangers"), help="for logs")
    args = parser.parse_args()
    for name in args.attacks or ATTACKS:
        with command.fresh(args.folder) as folder, stage_with_bridge(folder, name) as (stage, bridge):
            print(name, run_attack(stage, bridge, name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(command.run("strangers", main))
