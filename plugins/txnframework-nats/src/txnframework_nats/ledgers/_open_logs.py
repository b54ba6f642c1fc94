"""
The logs that a store has open: their handles share each, its housekeeping runs in the background, and changes of them
go on when their callers are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from txnframework.environment import Environment
from txnframework.errors import Closed, LedgerNotFound, OutcomeUnknown, TxnFrameworkError
from txnframework.runtime.tasks import start_task
from txnframework_nats.ledgers._appender import Appender
from txnframework_nats.ledgers._cache import RecordCache
from txnframework_nats.ledgers._decisions import Limits
from txnframework_nats.ledgers._log import LedgerLog
from txnframework_nats.ledgers._numbers import TransactionNumbers
from txnframework_nats.ledgers._options import NatsLedgerOptions
from txnframework_nats.ledgers._reader import EntryReader
from txnframework_nats.ledgers._records import StoredRecord
from txnframework_nats.ledgers._requests import Requests
from txnframework_nats.ledgers._shard import FoundName, Shard
from txnframework_nats.ledgers._watches import TailWatch, TailWatches

T = TypeVar("T")


class OpenLog:
    """A log that handles of this store share, with its writer and its reader."""

    def __init__(self, shard: Shard, token: str, log: LedgerLog, appender: Appender, reader: EntryReader) -> None:
        self.shard = shard
        self.token = token
        self.log = log
        self.appender = appender
        self.reader = reader
        self._loaded = False
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Read the log once."""
        async with self._loading:
            if not self._loaded:
                await self.log.load()
                self._loaded = True


class OpenLogs:
    """The open logs of a store. ``is_closed``: the store was closed."""

    def __init__(
        self,
        requests: Requests,
        numbers: Mapping[str, TransactionNumbers],
        environment: Environment,
        options: NatsLedgerOptions,
    ) -> None:
        self.environment = environment
        self.options = options
        self.is_closed = False
        self._requests = requests
        self._numbers = numbers
        self._cache = RecordCache(options.cache_bytes_max)
        self._watches = TailWatches(requests.connection, options.look_ms / 1000)
        self._logs: WeakValueDictionary[str, OpenLog] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        requests.connection.observe(self._connected)

    @property
    def message_bytes(self) -> int:
        """The largest data of one message."""
        return self._requests.message_bytes

    async def open(self, shard: Shard, found: FoundName) -> OpenLog:
        """
        Return the log of a name; it has been read.

        :raises LedgerNotFound: it was deleted.
        """
        token, options = found.named.log, self.options
        opened = self._logs.get(token)
        if opened is None:
            subjects, wakes = shard.subjects(token), shard.wakes(token)

            def read(record: StoredRecord) -> None:
                self._cache.put(subjects.records, record)
                self._watches.wake(wakes)

            log = LedgerLog(
                self._requests,
                subjects,
                found.named.name,
                options.deduplication_window_sequences,
                self.environment,
                read,
            )
            appender = Appender(
                log,
                self._numbers[shard.stream],
                Limits(options.ledger_entries_max, options.ledger_bytes_max),
                options.group_bytes_max,
                self.environment.now_ms,
                new_token,
            )
            opened = self._logs[token] = OpenLog(shard, token, log, appender, EntryReader(log, self._cache))
        await opened.load()
        await opened.log.refresh()
        if opened.log.state.deleted:
            raise LedgerNotFound(found.named.name)
        self.require_open()
        return opened

    async def arm(self, opened: OpenLog) -> TailWatch:
        """Return an armed watch on the end of a log."""
        log = opened.log

        async def look() -> bool:
            number = log.state.number
            await log.refresh()
            return log.state.number != number or log.state.deleted

        return await self._watches.arm(opened.shard.wakes(opened.token), look, lambda: log.state.number)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Return the result of work that goes on when its caller is cancelled.

        :raises OutcomeUnknown: the store was closed meanwhile.
        """
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self.is_closed:
                raise OutcomeUnknown("the ledger store was closed during a change") from None
            raise

    def keep_house(self, opened: OpenLog) -> None:
        """Store the state of a log that has grown, and remove old notes of transaction numbers, in the background."""
        log = opened.log
        grown = log.unsaved >= self.options.snapshot_records or log.unsaved_bytes >= self.options.snapshot_bytes
        if grown and not self.is_closed:
            log.unsaved = log.unsaved_bytes = 0
            task = start_task(self._keep_house(opened))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def remove_trimmed(self, opened: OpenLog) -> None:
        """Remove the messages of trimmed ledgers, once a snapshot covers them."""
        log, subjects = opened.log, opened.log.subjects
        if log.state.trimmed is None:
            return
        await log.take_snapshot()
        # What opened the first ledger that is left may hold the last entries of the one before. The last record of a
        # log stays, because the next one is stored behind it.
        # The record that a snapshot covers last stays as well: by it, an opener finds that nothing is missing.
        first = log.state.ledgers[0].opened
        await self._requests.purge(subjects.stream, subjects.pieces, min(first, log.snapshots.number))
        await self._requests.purge(subjects.stream, subjects.records, min(first + 1, log.snapshots.number))

    async def close(self) -> None:
        """Close every log; may be repeated."""
        if self.is_closed:
            return
        self.is_closed = True
        await self._watches.close()
        for opened in tuple(self._logs.values()):
            await opened.appender.close()
            opened.log.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def require_open(self) -> None:
        """Raise Closed if the store was closed."""
        if self.is_closed:
            raise Closed("the ledger store was closed")

    def _connected(self, is_connected: bool) -> None:
        """Wake every watch: hints may have been lost while there was no connection."""
        if is_connected:
            self._watches.wake_all()

    async def _keep_house(self, opened: OpenLog) -> None:
        # A failure loses nothing: a log without a snapshot takes longer to open.
        with suppress(TxnFrameworkError):
            await opened.log.take_snapshot()
            await self._numbers[opened.shard.stream].clean()


def new_token() -> bytes:
    """Return the token of a new record."""
    return uuid4().bytes


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take the error of work whose caller was cancelled."""
    if not task.cancelled():
        task.exception()
