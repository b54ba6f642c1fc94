"""What a batch requires of the records, and the messages that write it; pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import Expect, Expected, Key, Put, PutSequential, Record, Step
from txnframework.model.paths import number20
from txnframework_nats.connection._connection import BATCH_MESSAGES_MAX, Message
from txnframework_nats.records._copy import RecordCopy
from txnframework_nats.records._layout import (
    EXPECTED_HEADER,
    EXPECTED_SUBJECT_HEADER,
    LIFE_HEADER,
    ROLLUP,
    WRITE_HEADER,
    Layout,
    RecordID,
    encode_delete,
    encode_put,
    record_id,
)

CHECK_LIFE = "60s"
"""How long a message that only carries a condition is kept: nothing reads it."""


class StepPart(msgspec.Struct, frozen=True):
    """
    One step of a batch with its key known; ``put`` and ``is_deleted`` are both unset for a check.

    ``is_fresh``: no other process knows the key, because its number was never given to a caller.
    """

    key: Key
    place: RecordID
    expected: Expected
    put: Put | None = None
    is_deleted: bool = False
    is_fresh: bool = False


class Plan(msgspec.Struct, frozen=True):
    """Messages in their order; ``written``: the places of the messages of the puts among them, in the puts' order."""

    messages: tuple[Message, ...]
    written: tuple[int, ...]
    parts: tuple[StepPart, ...]


def parts_of(step: Step, numbers: Sequence[int]) -> tuple[StepPart, ...]:
    """Return the steps of a batch; ``numbers`` are those of its sequential puts, in their order."""
    left = iter(numbers)
    parts = [StepPart(check.key, record_id(check.key), check.expected) for check in step.checks]
    for put in step.puts:
        if isinstance(put, PutSequential):
            path, partition = record_id(put.prefix)
            key = Key(f"{path}/{number20(next(left))}", partition)
            whole = Put(key, put.value, Expect.ABSENT, put.indexes)
            parts.append(StepPart(key, record_id(key), Expect.ABSENT, whole, is_fresh=True))
        else:
            parts.append(StepPart(put.key, record_id(put.key), put.expected, put))
    parts += [StepPart(one.key, record_id(one.key), one.expected, is_deleted=True) for one in step.deletes]
    return tuple(parts)


def require_expected(parts: Sequence[StepPart], copy: RecordCopy) -> None:
    """
    Raise VersionMismatch for the first step whose record is not as expected in the copy.

    A deletion under ABSENT or ANY accepts an absent record.
    """
    for part in parts:
        record = copy.get(part.place)
        actual = record.version if record else None
        if part.expected is Expect.ANY or (part.expected is Expect.ABSENT and actual is None):
            continue
        if part.expected is Expect.ABSENT or actual != part.expected:
            raise VersionMismatch(part.key, actual)


def needs_look(parts: Sequence[StepPart], copy: RecordCopy) -> bool:
    """
    Return whether the copy must be current before the messages are made.

    A condition that names a version is checked by the stream. What the copy alone decides needs a current copy: that a
    record is present although it must be absent, and that there is nothing to delete.
    """
    for part in parts:
        present = copy.get(part.place) is not None
        if part.is_deleted and not present and not isinstance(part.expected, int):
            return True
        if part.expected is Expect.ABSENT and present:
            return True
    return False


def plan(
    parts: Sequence[StepPart], copy: RecordCopy, layout: Layout, client: str, write: str, deleted_life: str
) -> Plan:
    """
    Return the messages that apply the steps.

    Every message of a record carries a condition on its own subject. A retry of a write that was applied is therefore
    refused, and so is a write that arrives late. One exception saves a batch: a check and one fresh record become a
    single message, whose condition is on the checked subject.

    :raises InvalidInput: there are more messages than a batch may have.
    """
    checks = [part for part in parts if part.put is None and not part.is_deleted and part.expected is not Expect.ANY]
    # The last message of a batch ends it for readers. That of a put is kept; that of a deletion is dropped some time.
    others = [part for part in parts if part.is_deleted] + [part for part in parts if part.put is not None]
    if len(checks) == 1 and len(others) == 1 and others[0].is_fresh:
        message = _message(others[0], copy, layout, write, deleted_life)
        assert message is not None
        headers = {**message.headers, **_condition(checks[0], copy, layout)}
        return Plan((Message(message.subject, message.payload, headers),), (0,), tuple(parts))
    messages: list[Message] = []
    for number, check in enumerate(checks):
        headers = {WRITE_HEADER: write, LIFE_HEADER: CHECK_LIFE, **_condition(check, copy, layout)}
        messages.append(Message(layout.check(client, number), b"", headers))
    written: list[int] = []
    for part in others:
        if part.put is not None:
            written.append(len(messages))
        message = _message(part, copy, layout, write, deleted_life)
        messages.append(message or _absence(part, copy, layout, client, write, len(messages)))
    if len(messages) > BATCH_MESSAGES_MAX:
        raise InvalidInput(f"a step has at most {BATCH_MESSAGES_MAX} parts here, not {len(messages)}")
    return Plan(tuple(messages), tuple(written), tuple(parts))


def records_of(made: Plan, last: int) -> tuple[Record, ...]:
    """Return what the puts of a plan wrote; ``last`` is the number of its last message."""
    first = last - len(made.messages) + 1
    puts = [part.put for part in made.parts if part.put is not None]
    return tuple(Record(put.key, bytes(put.value), first + at) for put, at in zip(puts, made.written, strict=True))


def _message(part: StepPart, copy: RecordCopy, layout: Layout, write: str, deleted_life: str) -> Message | None:
    """Return the message that writes or deletes a record, or None if there is nothing to delete."""
    sequence = part.expected if isinstance(part.expected, int) else copy.sequence(part.place)
    headers = {WRITE_HEADER: write, EXPECTED_HEADER: str(sequence), **ROLLUP}
    if part.put is not None:
        return Message(layout.record(part.place), encode_put(part.place, part.put), headers)
    if copy.get(part.place) is None and not isinstance(part.expected, int):
        return None
    # The message of a deletion stays for a while. A late write that expects a subject without messages is then refused.
    return Message(layout.record(part.place), encode_delete(part.place), headers | {LIFE_HEADER: deleted_life})


def _absence(part: StepPart, copy: RecordCopy, layout: Layout, client: str, write: str, number: int) -> Message:
    """Return a message with the condition that a record is still absent."""
    headers = {WRITE_HEADER: write, LIFE_HEADER: CHECK_LIFE, **_condition(part, copy, layout)}
    return Message(layout.check(client, number), b"", headers)


def _condition(part: StepPart, copy: RecordCopy, layout: Layout) -> dict[str, str]:
    """Return the headers with the condition of a step, for a message with another subject."""
    sequence = part.expected if isinstance(part.expected, int) else copy.sequence(part.place)
    return {EXPECTED_HEADER: str(sequence), EXPECTED_SUBJECT_HEADER: layout.record(part.place)}
