"""Receipts: outcomes of requests and timers on `timer.receipts`, in the transaction of the outcome.

    schedule                    accepted            then delivered | cancelled | replaced | rejected
    cancel, something pending   cancelled           about the timer that ended
    cancel, nothing pending     too-late | not-found
    a request with the id of a pending timer        replaced (about the old one), accepted (about the new one)
    move, something pending     moved               about the timer, with its new due time
    move, nothing pending       too-late | not-found
    pause, resume               paused | resumed    about the timer, with its own due time; else as a move
    replace, nothing pending    too-late | not-found, and accepted: it is a timer all the same
    refused or undeliverable    rejected, with the code

The record's key is the id, or the origin if there is no id. For other languages: docs/receipt.schema.json.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal[
    "accepted", "delivered", "cancelled", "replaced", "moved", "paused", "resumed", "not-found", "too-late", "rejected"
]
Mode = Literal["none", "outcomes", "all"]


class Receipt(BaseModel):
    """The value of one record on the receipts topic, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    kind: Kind
    at_ms: int = Field(description="Time of the outcome, epoch ms by the bridge's clock.")
    request: str = Field(description="topic/partition/offset of the request that this answers.")
    origin: str | None = Field(
        default=None, description="topic/partition/offset of the timer that it is about; null if there was none."
    )
    id: str | None = Field(default=None, description="The timer-id; bytes that are not UTF-8 are written as \\xNN.")
    due_ms: int | None = Field(default=None, description="When the timer was due, epoch ms.")
    code: str | None = Field(default=None, description="Of a rejected one: the code of its timer-error header.")
    detail: str | None = Field(
        default=None, description="Of a not-found one: in which other partition a client may have put the timer."
    )

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


def is_sent(kind: str, mode: Mode) -> bool:
    return mode == "all" or (mode == "outcomes" and kind not in ("accepted", "delivered"))


def printable(id_: bytes) -> str:
    return id_.decode("utf-8", "backslashreplace")
