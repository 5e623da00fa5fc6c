"""Open a redrive over Kafka, for the command and for the API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.config.settings import Settings

if TYPE_CHECKING:
    from bridge.kafka import Retrier
    from bridge.kafka.redrive import ConfluentRedrive


@contextmanager
def redrive_session(settings: Settings, ending: "Retrier | None" = None) -> "Iterator[ConfluentRedrive]":
    """Yield a ConfluentRedrive that waits for a broker up to `startup_timeout`, then without limit to send.

    ending: ends all waits when it ends.
    """
    from bridge.kafka import ConfluentRedrive, Retrier  # only here: the command's --help needs no librdkafka

    retrier = Retrier(ending)
    retrier.give_up_in(settings.startup_timeout / 1000)
    redrive = ConfluentRedrive(
        settings.connection("redrive"), settings.rejected_topic, settings.redriven_topic, settings.rules(), retrier
    )
    try:
        yield redrive
    finally:
        redrive.close()
