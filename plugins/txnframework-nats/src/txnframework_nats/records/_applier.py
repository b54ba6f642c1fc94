"""Applies the messages of the stream to the copy of the records, whole batches in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from txnframework.errors import TxnFrameworkError
from txnframework_nats.records._consumer import FeedMessage
from txnframework_nats.records._copy import RecordChange, RecordCopy
from txnframework_nats.records._layout import Layout, decode

Observer = Callable[[Sequence[RecordChange]], None]
SessionObserver = Callable[[str, int, bytes], None]


class Applier:
    """
    Applies messages in their order.

    The messages of one batch are applied in one step: a reader never sees a part of a batch. The end of a batch is its
    last message, or a message of another write: the last message may have been replaced by a later one.

    ``advanced`` is set when the copy has reached a higher number, or ``failure`` says why it never will. ``gaps``: how
    often a number was missing.
    """

    def __init__(self, layout: Layout, copy: RecordCopy) -> None:
        self.failure: TxnFrameworkError | None = None
        self.advanced = asyncio.Event()
        self.gaps = 0
        self._layout = layout
        self._copy = copy
        self._loop = asyncio.get_running_loop()
        self._batch: list[FeedMessage] = []
        self._batch_at_s = 0.0
        self._expected_writes: dict[str, int] = {}
        self._on_changes: list[Observer] = []
        self._on_session: list[SessionObserver] = []

    def observe(self, changes: Observer) -> None:
        """Call ``changes`` after changes."""
        self._on_changes.append(changes)

    def observe_sessions(self, observer: SessionObserver) -> None:
        """Call ``observer`` with the name, number and content of each message of a session."""
        self._on_session.append(observer)

    def expect_write(self, write: str) -> None:
        """Remember the number of the last message of this write from now on, if it is received."""
        self._expected_writes[write] = 0

    def seen_write(self, write: str) -> int:
        """Return the number of the last received message of an expected write, or 0."""
        return self._expected_writes.get(write, 0)

    def forget_write(self, write: str) -> None:
        """Stop remembering a write."""
        self._expected_writes.pop(write, None)

    @property
    def received(self) -> int:
        """The number of the last received message, applied or not."""
        return self._batch[-1].sequence if self._batch else self._copy.applied

    @property
    def waits_s(self) -> float | None:
        """How long the received part of a batch waits for the rest; None without one."""
        return self._loop.time() - self._batch_at_s if self._batch else None

    def receive(self, message: FeedMessage) -> None:
        """Take the next message of the consumer."""
        try:
            self._add(message)
        except TxnFrameworkError as error:
            # A message of a later release, or a damaged one: nothing can be read any more.
            self.failure = error
            self.advanced.set()

    def forget_batch(self) -> None:
        """Forget the received part of a batch: the next consumer delivers it again."""
        self._batch = []

    def flush(self) -> None:
        """Apply the messages that were received since the end of the last batch."""
        messages, self._batch = self._batch, []
        if not messages:
            return
        changes: list[RecordChange] = []
        for message in messages:
            if message.write in self._expected_writes:
                self._expected_writes[message.write] = message.sequence
            if self._layout.is_record(message.subject):
                content = decode(message.subject, message.payload)
                change = self._copy.apply(content, message.sequence, message.replaced)
                if change is not None:
                    changes.append(change)
        for message in messages:
            session = self._layout.session_of(message.subject)
            if session is not None:
                for observer in self._on_session:
                    observer(session, message.sequence, message.payload)
        self._copy.applied = max(self._copy.applied, messages[-1].sequence)
        if changes:
            for on_changes in self._on_changes:
                on_changes(changes)

    def advance(self, sequence: int) -> None:
        """Take note that nothing up to this number is missing."""
        self._copy.applied = max(self._copy.applied, sequence)
        self.advanced.set()

    def _add(self, message: FeedMessage) -> None:
        is_after_gap = message.sequence > self.received + 1
        if self._batch and message.batch != self._batch[-1].batch:
            self.flush()
        if is_after_gap:
            self.gaps += 1
        self._batch.append(message)
        self._batch_at_s = self._loop.time()
        if message.is_end or not message.batch:
            self.flush()
            self.advance(message.sequence)
