"""What a batch requires of the records, and the messages that write it; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import Batch, Expect, Expected, Key, Put, PutSequential, Record
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


class Step(msgspec.Struct, frozen=True):
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
    steps: tuple[Step, ...]


def check_batch(batch: Batch) -> None:
    """Raise ValueError for a batch that names two partitions, or one key twice."""
    partitions = {key.partition or key.path for key in _keys(batch)}
    if len(partitions) > 1:
        raise ValueError(f"the keys of a batch must have one partition, and not several: {sorted(partitions)}")
    places = [record_id(check.key) for check in batch.checks]
    places += [record_id(put.key) for put in batch.puts if isinstance(put, Put)]
    places += [record_id(delete.key) for delete in batch.deletes]
    if len(set(places)) < len(places):
        raise ValueError("a batch has at most one step for any one key")


def _keys(batch: Batch) -> Iterator[Key]:
    for put in batch.puts:
        yield put.prefix if isinstance(put, PutSequential) else put.key
    yield from (check.key for check in batch.checks)
    yield from (delete.key for delete in batch.deletes)


def steps_of(batch: Batch, numbers: Sequence[int]) -> tuple[Step, ...]:
    """Return the steps of a batch; ``numbers`` are those of its sequential puts, in their order."""
    left = iter(numbers)
    steps = [Step(check.key, record_id(check.key), check.expected) for check in batch.checks]
    for put in batch.puts:
        if isinstance(put, PutSequential):
            path, partition = record_id(put.prefix)
            key = Key(f"{path}/{number20(next(left))}", partition)
            whole = Put(key, put.value, Expect.ABSENT, put.indexes)
            steps.append(Step(key, record_id(key), Expect.ABSENT, whole, is_fresh=True))
        else:
            steps.append(Step(put.key, record_id(put.key), put.expected, put))
    steps += [Step(one.key, record_id(one.key), one.expected, is_deleted=True) for one in batch.deletes]
    return tuple(steps)


def require_expected(steps: Sequence[Step], copy: RecordCopy) -> None:
    """
    Raise VersionMismatch for the first step whose record is not as expected in the copy.

    A deletion under ABSENT or ANY accepts an absent record.
    """
    for step in steps:
        record = copy.get(step.place)
        actual = record.version if record else None
        if step.expected is Expect.ANY or (step.expected is Expect.ABSENT and actual is None):
            continue
        if step.expected is Expect.ABSENT or actual != step.expected:
            raise VersionMismatch(step.key, actual)


def needs_look(steps: Sequence[Step], copy: RecordCopy) -> bool:
    """
    Return whether the copy must be current before the messages are made.

    A condition that names a version is checked by the stream. What the copy alone decides needs a current copy: that a
    record is present although it must be absent, and that there is nothing to delete.
    """
    for step in steps:
        present = copy.get(step.place) is not None
        if step.is_deleted and not present and not isinstance(step.expected, int):
            return True
        if step.expected is Expect.ABSENT and present:
            return True
    return False


def plan(steps: Sequence[Step], copy: RecordCopy, layout: Layout, client: str, write: str, deleted_life: str) -> Plan:
    """
    Return the messages that apply the steps.

    Every message of a record carries a condition on its own subject. A retry of a write that was applied is therefore
    refused, and so is a write that arrives late. One exception saves a batch: a check and one fresh record become a
    single message, whose condition is on the checked subject.

    :raises InvalidInput: there are more messages than a batch may have.
    """
    checks = [step for step in steps if step.put is None and not step.is_deleted and step.expected is not Expect.ANY]
    # The last message of a batch ends it for readers. That of a put is kept; that of a deletion is dropped some time.
    others = [step for step in steps if step.is_deleted] + [step for step in steps if step.put is not None]
    if len(checks) == 1 and len(others) == 1 and others[0].is_fresh:
        message = _message(others[0], copy, layout, write, deleted_life)
        assert message is not None
        headers = {**message.headers, **_condition(checks[0], copy, layout)}
        return Plan((Message(message.subject, message.payload, headers),), (0,), tuple(steps))
    messages: list[Message] = []
    for number, check in enumerate(checks):
        headers = {WRITE_HEADER: write, LIFE_HEADER: CHECK_LIFE, **_condition(check, copy, layout)}
        messages.append(Message(layout.check(client, number), b"", headers))
    written: list[int] = []
    for step in others:
        if step.put is not None:
            written.append(len(messages))
        message = _message(step, copy, layout, write, deleted_life)
        messages.append(message or _absence(step, copy, layout, client, write, len(messages)))
    if len(messages) > BATCH_MESSAGES_MAX:
        raise InvalidInput(f"a batch has at most {BATCH_MESSAGES_MAX} steps here, not {len(messages)}")
    return Plan(tuple(messages), tuple(written), tuple(steps))


def records_of(made: Plan, last: int) -> tuple[Record, ...]:
    """Return what the puts of a plan wrote; ``last`` is the number of its last message."""
    first = last - len(made.messages) + 1
    puts = [step.put for step in made.steps if step.put is not None]
    return tuple(Record(put.key, bytes(put.value), first + at) for put, at in zip(puts, made.written, strict=True))


def _message(step: Step, copy: RecordCopy, layout: Layout, write: str, deleted_life: str) -> Message | None:
    """Return the message that writes or deletes a record, or None if there is nothing to delete."""
    sequence = step.expected if isinstance(step.expected, int) else copy.sequence(step.place)
    headers = {WRITE_HEADER: write, EXPECTED_HEADER: str(sequence), **ROLLUP}
    if step.put is not None:
        return Message(layout.record(step.place), encode_put(step.place, step.put), headers)
    if copy.get(step.place) is None and not isinstance(step.expected, int):
        return None
    # The message of a deletion stays for a while. A late write that expects a subject without messages is then refused.
    return Message(layout.record(step.place), encode_delete(step.place), headers | {LIFE_HEADER: deleted_life})


def _absence(step: Step, copy: RecordCopy, layout: Layout, client: str, write: str, number: int) -> Message:
    """Return a message with the condition that a record is still absent."""
    headers = {WRITE_HEADER: write, LIFE_HEADER: CHECK_LIFE, **_condition(step, copy, layout)}
    return Message(layout.check(client, number), b"", headers)


def _condition(step: Step, copy: RecordCopy, layout: Layout) -> dict[str, str]:
    """Return the headers with the condition of a step, for a message with another subject."""
    sequence = step.expected if isinstance(step.expected, int) else copy.sequence(step.place)
    return {EXPECTED_HEADER: str(sequence), EXPECTED_SUBJECT_HEADER: layout.record(step.place)}
