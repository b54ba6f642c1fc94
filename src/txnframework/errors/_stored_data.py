"""Errors about stored data that cannot be read."""

from __future__ import annotations

from txnframework.errors._root import TxnFrameworkError, excerpt
from txnframework.values import Position


class Corrupt(TxnFrameworkError):
    """
    Stored data does not have its expected form.

    :known: Nothing was skipped or changed.
    :retry: never
    :advice: Stop writing, find the cause in the storage, and restore from a backup.
    """

    code = "TXN-500"


class CorruptEntry(Corrupt):
    """
    The entry at ``position`` of ``segment``, as far as both are known, is damaged.

    :known: The entry and those after it were not delivered.
    :retry: never
    :advice: Compare with a backup or a replica of the ledger store; restore it, or seek past the entry if its content
        may be lost.
    """

    code = "TXN-501"

    def __init__(self, position: Position | None, reason: str, segment: str = "") -> None:
        self.position = position
        self.reason = reason
        self.segment = segment
        super().__init__(f"{entry_named(position, segment)} is damaged: {reason}")


def entry_named(position: Position | None, segment: str = "") -> str:
    """Return an entry's name for a sentence, as far as it is known."""
    return ("an entry" if position is None else f"entry {position}") + (f" of {segment}" if segment else "")


class CorruptRecord(Corrupt):
    """
    The record at ``key`` is damaged at ``field``.

    :known: The operation was not done.
    :retry: never
    :advice: Look for a program that changed the record directly, and restore it from a backup.
    """

    code = "TXN-502"

    def __init__(self, key: str, field: str, reason: str) -> None:
        self.key = key
        self.field = field
        self.reason = reason
        super().__init__(f"record {key} is damaged at {field}: {reason}")


class UndecodableMessage(Corrupt):
    """
    The content of the message at ``position`` of ``segment`` cannot be decoded; ``schema_id`` is the message's, if any.

    Neither the error nor its cause contains the value. The message can be acknowledged, or redelivered until it becomes
    a dead letter.

    :known: The message is delivered, and is not acknowledged.
    :retry: never
    :advice: Correct the serializer, acknowledge the message, or let it become a dead letter.
    """

    code = "TXN-503"

    def __init__(self, topic: str, segment: str, position: Position, schema_id: str | None, reason: str) -> None:
        self.topic = topic
        self.segment = segment
        self.position = position
        self.schema_id = schema_id
        self.reason = reason
        schema = "without a schema id" if schema_id is None else f"with the schema id {excerpt(schema_id)}"
        super().__init__(f"the message at {position} of {segment}, {schema}, cannot be decoded: {reason}")


class UnknownFormat(Corrupt):
    """
    ``what`` was written in format ``version``, which this release does not know; upgrade before reading.

    :known: Nothing was read or changed.
    :retry: never
    :advice: Upgrade this process to the release that wrote the data.
    """

    code = "TXN-504"

    def __init__(self, what: str, version: object) -> None:
        self.what = what
        self.version = version
        super().__init__(
            f"{what} has format version {version}, which this release does not know; open it with the one that wrote it"
        )
