"""Who has to act. What the sender has to mend is no exception: it is a `Refusal` and goes to the rejected topic."""


class BridgeError(Exception):
    """Ends the process with one line on stderr. `exit_code` 1: trouble outside; 2: a wrong setting or call."""

    exit_code = 1


class SettingsError(BridgeError):
    """The operator: a setting is missing, malformed or breaks an invariant. The message names it and the remedy."""

    exit_code = 2


class BrokerUnavailableError(BridgeError):
    """Wait: no broker answers."""


class FencedError(BridgeError):
    """Another process runs with our transactional.id or instance id; this one must end and touch nothing."""


class ProgressLostError(BridgeError):
    """The operator: the group's progress is gone or foreign while the journal says that timers were delivered.

    Foreign too: what lies beyond the timer topic's end, as new requests would get offsets that count as settled.

    Going on by default could deliver everything again or lose it; `--adopt-progress` is the operator's word.
    """


class ForeignJournalError(BridgeError):
    """The operator: another group, or another timer topic, owns the journal. Both would deliver every message."""

    exit_code = 2


class NameTakenError(BridgeError):
    """Wait: the group still knows a member of our instance id; its session has to expire. A start follows."""


class OutcomeUnknownError(BridgeError):
    """A commit broke off, and nobody here knows whether it stands. Kafka does: a start follows, as after a crash."""


class MembershipLostError(BridgeError):
    """Our membership of the group ended: others may have had what we still hold, or we hold nothing and cannot rejoin.

    A start with new Kafka clients follows, as after a crash.
    """


class PartitionUnreadableError(BridgeError):
    """One partition cannot be read now: it waits, and all others go on (docs/design/kafka-reads.md).

    undecodable: offset of the record that the Kafka client cannot decode, or None if no answer came in time.
    """

    def __init__(self, message: str, undecodable: int | None = None) -> None:
        super().__init__(message)
        self.undecodable = undecodable


class TopicGrownError(BridgeError):
    """A timer topic has more partitions than its journal. A start follows, which adds what is missing."""


def lost_end(topic: str, partition: int, end: int, read_to: int) -> str:
    """What to tell of a timer partition that no longer has what was read of it."""
    return (
        f"{topic}/{partition} has lost its end below offset {read_to}, up to which it was read (it ends at {end} now):"
        f" an unclean leader election, or the topic was made anew. Where a start ends with these words: stop all"
        f" instances, keep their directories, and go on as docs/operations.md says under Disaster: timer-bridge export,"
        f" kafka-consumer-groups.sh --delete-offsets --group GROUP --topic {topic}, start once with --adopt-progress"
        f" latest, timer-bridge import"
    )
