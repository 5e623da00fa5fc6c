"""Errors by who has to act. A sender's mistake raises none: it is a `Refusal` and goes to the rejected topic."""

from kafka_timer.errors import BridgeError as BridgeError
from kafka_timer.errors import BrokerUnavailableError as BrokerUnavailableError
from kafka_timer.errors import SettingsError as SettingsError


class FencedError(BridgeError):
    """Another process uses our transactional.id or instance id. This one must end and change nothing."""


class MemberFencedError(FencedError):
    """The group has another member with our instance id: another process, or a request of our own to join.

    Kafka gives the id to the last request. A request that the network has delayed may arrive after its successor.
    """


SAME_INSTANCE = (
    "another process runs with this instance's id, perhaps on a copy of the data directory: this one ends. Give each"
    " its own --data-dir, and delete the file instance-id in the copy"
)


class ProgressLostError(BridgeError):
    """Operator: the group's progress is gone or foreign, but the journal says that timers were delivered.

    Foreign includes progress beyond the end of the timer topic: new requests would get offsets that count as settled.
    Going on could deliver everything again or lose it, so the operator decides with `--adopt-progress`.
    """


class ForeignJournalError(BridgeError):
    """Operator: another group, or another timer topic, owns the journal. Both would deliver every message."""


class InstanceIdInUseError(BridgeError):
    """Wait: the group still knows a member with our instance id. After its session has expired, a restart follows."""


class OutcomeUnknownError(BridgeError):
    """A commit was interrupted, and its outcome is unknown here. A restart reads it from Kafka, as after a crash."""


class MembershipLostError(BridgeError):
    """Our group membership has ended: others may have owned what we still hold, or we own nothing and cannot rejoin.

    A restart with new Kafka clients follows, as after a crash.
    """


class PartitionUnreadableError(BridgeError):
    """One partition cannot be read now: it waits, and all others go on (docs/design/reads-and-bounds.md).

    undecodable: offset of the record that the Kafka client cannot decode, or None if no answer came in time.
    """

    def __init__(self, message: str, undecodable: int | None = None) -> None:
        super().__init__(message)
        self.undecodable = undecodable


class TopicGrownError(BridgeError):
    """A timer topic has more partitions than its journal. A restart follows, which adds the missing ones."""


def exit_code_of(error: BridgeError) -> int:
    """Return the exit code of a process that ends with this error: 2 for a wrong setting or call, else 1."""
    return 2 if isinstance(error, SettingsError | ForeignJournalError) else 1


def truncated_partition_message(topic: str, partition: int, end: int, read_to: int) -> str:
    """Return the error text for a timer partition that has lost records which were already read."""
    return (
        f"{topic}/{partition} has lost its end below offset {read_to}, up to which it was read (it ends at {end} now):"
        f" an unclean leader election, or the topic was created again. If a start fails with this message: stop all"
        f" instances, keep their directories, and go on as docs/operations.md says under Disaster: timer-bridge export,"
        f" kafka-consumer-groups.sh --delete-offsets --group GROUP --topic {topic}, start once with --adopt-progress"
        f" latest, timer-bridge import"
    )
