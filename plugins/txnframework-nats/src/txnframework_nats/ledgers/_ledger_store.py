"""The ledger store on JetStream, and its managed ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import Closed, InvalidInput, LedgerNotFound, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.interfaces import ILedgerStore, IManagedLedger, IRestorable, IWatch
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    Tail,
    WindowState,
)
from txnframework.plugin import Provider, StoreContext
from txnframework_nats._options import locate
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.ledgers._appender import Appender
from txnframework_nats.ledgers._cache import RecordCache
from txnframework_nats.ledgers._decisions import Limits, decide_trim
from txnframework_nats.ledgers._installation import Installation
from txnframework_nats.ledgers._log import Change, LedgerLog, creation
from txnframework_nats.ledgers._numbers import TransactionNumbers
from txnframework_nats.ledgers._options import NatsLedgerOptions
from txnframework_nats.ledgers._reader import EntryReader
from txnframework_nats.ledgers._records import Deleted, Rolled, Sealed, StoredRecord
from txnframework_nats.ledgers._requests import Refusal, Requests, Unanswered
from txnframework_nats.ledgers._shard import FoundName, Shard, digest
from txnframework_nats.ledgers._state import LedgerState
from txnframework_nats.ledgers._watches import TailWatch, TailWatches

T = TypeVar("T")

_DELETION_KEPT_S = 7 * 24 * 3600
_TRIES = 20

REFUSALS_MAX = 2
"""A seal, a roll, a trim or a deletion that was outrun so often asks the writers to wait."""


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


@implementer(IManagedLedger)
class NatsManagedLedger:
    """A handle of a managed ledger; any number of handles in any number of processes may append and read."""

    def __init__(self, store: NatsLedgerStore, opened: OpenLog) -> None:
        self.name = opened.log.name
        self._store = store
        self._opened = opened
        self._armed: set[TailWatch] = set()
        self._is_closed = False

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        self._require_open()
        if ledger_id is None and any(entry.branch is not None for entry in entries):
            raise ValueError("an entry with a branch is appended to the ledger that its intent names")
        if not entries:
            return ()
        appended = await self._opened.appender.append(entries, ledger_id)
        self._store.keep_house(self._opened)
        return appended

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the valid copy of this sequence, or None."""
        return (await self._state()).find_sequence(producer, sequence)

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what the ledger remembers of a producer, and how many of its sequences are above the given one."""
        return (await self._state()).remembered(producer, sequence)

    async def tail(self) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return (await self._state()).tail()

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        self._require_open()
        return await self._opened.reader.read(entries, limit)

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far ``messages_max`` messages reach into the range."""
        self._require_open()
        return await self._opened.reader.count(entries, messages_max)

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after a ledger id."""
        state = await self._state()
        state.require_present()
        return tuple(one.summary() for one in state.ledgers if one.ledger_id > after)[:items_max]

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry that was appended at or after ``published_ms``."""
        self._require_open()
        return await self._opened.reader.find_time(published_ms)

    async def roll(self) -> Tail:
        """Close the open ledger permanently and open the next, unless it is sealed or empty."""

        def decide(state: LedgerState) -> Change[None]:
            state.require_present()
            nothing = state.sealed or not state.open.entries
            return Change(None, None if nothing else Rolled(_token()))

        await self._change(decide)
        return self._opened.log.state.tail()

    async def seal(self) -> Tail:
        """Refuse appends permanently; may be repeated, with the same result."""

        def decide(state: LedgerState) -> Change[None]:
            state.require_present()
            return Change(None, None if state.sealed else Sealed(_token()))

        await self._change(decide)
        return self._opened.log.state.tail()

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Remove closed ledgers below ``ledger_id``, in a bounded step; return the first remaining ledger."""
        silent_since_ms = self._store.environment.now_ms() - self._store.options.producer_idle_ms

        def decide(state: LedgerState) -> Change[None]:
            return Change(None, decide_trim(state, ledger_id, aborted, silent_since_ms, _token()))

        await self._change(decide)
        # Crash window: the ledgers are removed for every reader, and their messages are there still. The next trim
        # removes them.
        await self._store.remove_trimmed(self._opened)
        state = self._opened.log.state
        state.require_present()
        return state.ledgers[0].ledger_id

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        self._require_open()
        watch = await self._store.arm(self._opened)
        if self._is_closed:
            watch.end()
        self._require_open()
        self._armed = {armed for armed in self._armed if not armed.is_closed} | {watch}
        return watch

    async def close(self) -> None:
        """Close the handle; running appends return their results. May be repeated."""
        self._is_closed = True
        for watch in tuple(self._armed):
            watch.end()
        self._armed.clear()

    async def _state(self) -> LedgerState:
        """Return the state with everything that was confirmed before the call."""
        self._require_open()
        log = self._opened.log
        await log.refresh()
        return log.state

    @property
    def hints(self) -> str:
        """The subject on which the servers tell of records of this ledger."""
        return self._opened.shard.wakes(self._opened.token)

    async def _change(self, decide: Callable[[LedgerState], Change[T]]) -> T:
        self._require_open()
        return await self._store.finish(self._opened.log.change(decide, REFUSALS_MAX))

    def _require_open(self) -> None:
        if self._is_closed or self._store.is_closed:
            raise Closed(f"ledger {self.name} was closed")


@implementer(ILedgerStore, IRestorable)
class NatsLedgerStore:
    """Managed ledgers in a few streams, which any number of processes use at once."""

    def __init__(
        self,
        requests: Requests,
        installation: Installation,
        environment: Environment,
        options: NatsLedgerOptions,
    ) -> None:
        self.identity = installation.identity
        self.environment = environment
        self.options = options
        self.is_closed = False
        self._requests = requests
        self._installation = installation
        self._cache = RecordCache(options.cache_bytes_max)
        self._watches = TailWatches(requests.connection, options.look_ms / 1000)
        self._numbers = {shard.stream: TransactionNumbers(shard) for shard in installation.shards}
        self._logs: WeakValueDictionary[str, OpenLog] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        requests.connection.observe(self._connected)

    @property
    def connection(self) -> NatsConnection:
        """The connection of the store."""
        return self._requests.connection

    async def create(self, name: str) -> IManagedLedger:
        """Create an empty managed ledger, or open the existing one."""
        self._require_open()
        shard = self._shard(name)
        reason = "others create and delete it"
        for _ in range(_TRIES):
            found = await shard.find_name(name)
            if found is not None:
                try:
                    return await self._opened(shard, found)
                except LedgerNotFound:
                    await self._remove(shard, found)
                    continue
            log = uuid4().hex
            drafts = [shard.name_draft(name, log), creation(_token(), name, shard.subjects(log))]
            try:
                stored = await self._requests.store(drafts)
            except Unanswered as error:
                # Whether it was created is found out above. If it comes later, it creates an empty ledger.
                reason = str(error)
                await asyncio.sleep(0.05)
                continue
            if isinstance(stored, Refusal):
                reason = stored.reason
                await asyncio.sleep(0.01)
        raise Unavailable(f"ledger {name} was not created: {reason}")

    async def open(self, name: str) -> IManagedLedger:
        """Open the managed ledger, or raise LedgerNotFound."""
        self._require_open()
        shard = self._shard(name)
        found = await shard.find_name(name)
        if found is None:
            raise LedgerNotFound(name)
        return await self._opened(shard, found)

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Delete the managed ledger with its data, unless it is a later one; an absent one succeeds."""
        self._require_open()
        shard = self._shard(name)
        found = await shard.find_name(name)
        if found is None:
            return

        def decide(state: LedgerState) -> Change[bool]:
            if state.deleted:
                return Change(True)
            if upto_ledger_id is not None and state.open.ledger_id > upto_ledger_id:
                return Change(False)
            return Change(True, Deleted(_token()), lifetime_s=_DELETION_KEPT_S)

        try:
            opened = await self._log(shard, found)
            deleted = await self.finish(opened.log.change(decide, REFUSALS_MAX))
        except LedgerNotFound:
            deleted = True
        if deleted:
            # Crash window: the ledger is deleted for everybody, and its name and its data are there still. The
            # process that creates or deletes the name next removes them.
            await self._remove(shard, found)

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names that begin with ``prefix``, in order, after ``after``."""
        self._require_open()
        pages = await asyncio.gather(*(shard.names() for shard in self._installation.shards))
        names = sorted(name for page in pages for name in page if name.startswith(prefix) and name > after)
        return tuple(names[:items_max])

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        self._require_open()
        highest: dict[int, int] = {}
        for found in await asyncio.gather(*(numbers.highest() for numbers in self._numbers.values())):
            for coordinator, number in found.items():
                highest[coordinator] = max(number, highest.get(coordinator, -1))
        return highest

    async def take_identity(self, identity: str) -> None:
        """Bind the ledgers to a metadata store of another identity."""
        self._require_open()
        await self._installation.take_identity(identity)
        self.identity = identity

    async def close(self) -> None:
        """Close every ledger; may be repeated."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            await self._watches.close()
            for opened in tuple(self._logs.values()):
                await opened.appender.close()
            for task in tuple(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(tuple(self._tasks))
        finally:
            await self._requests.connection.close()

    def _connected(self, is_connected: bool) -> None:
        """Wake every watch: hints may have been lost while there was no connection."""
        if is_connected:
            self._watches.wake_all()

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
        task = asyncio.ensure_future(work)
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
            task = asyncio.ensure_future(self._keep_house(opened))
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
        first = log.state.ledgers[0].ledger_id
        await self._requests.purge(subjects.stream, subjects.pieces, min(first, log.snapshot_number))
        await self._requests.purge(subjects.stream, subjects.records, min(first + 1, log.snapshot_number))

    async def _keep_house(self, opened: OpenLog) -> None:
        # A failure loses nothing: a log without a snapshot takes longer to open.
        with suppress(TxnFrameworkError):
            await opened.log.take_snapshot()
            await self._numbers[opened.shard.stream].clean()

    async def _opened(self, shard: Shard, found: FoundName) -> NatsManagedLedger:
        return NatsManagedLedger(self, await self._log(shard, found))

    async def _log(self, shard: Shard, found: FoundName) -> OpenLog:
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
                read,
            )
            appender = Appender(
                log,
                self._numbers[shard.stream],
                Limits(options.ledger_entries_max, options.ledger_bytes_max),
                options.group_bytes_max,
                self.environment.now_ms,
                _token,
            )
            opened = self._logs[token] = OpenLog(shard, token, log, appender, EntryReader(log, self._cache))
        await opened.load()
        await opened.log.refresh()
        if opened.log.state.deleted:
            raise LedgerNotFound(found.named.name)
        self._require_open()
        return opened

    async def _remove(self, shard: Shard, found: FoundName) -> None:
        """Remove what is left of a deleted ledger, and its name last: it leads to the rest."""
        subjects = shard.subjects(found.named.log)
        for subject in (subjects.pieces, subjects.snapshots):
            await self._requests.purge(shard.stream, subject, None)
        last = await self._requests.last_at_leader(shard.stream, subjects.records)
        if last is not None:
            # The record of the deletion stays for some days: open handles find it.
            await self._requests.purge(shard.stream, subjects.records, last.number)
        await shard.remove_name(found.named.name, found.number)

    def _shard(self, name: str) -> Shard:
        try:
            token = digest(name)
        except UnicodeEncodeError as error:
            raise InvalidInput("the name of a ledger has no UTF-8 form") from error
        shards = self._installation.shards
        return shards[int(token[:8], 16) % len(shards)]

    def _require_open(self) -> None:
        if self.is_closed:
            raise Closed("the ledger store was closed")


def _token() -> bytes:
    return uuid4().bytes


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take the error of work whose caller was cancelled."""
    if not task.cancelled():
        task.exception()


def ledger_providers() -> list[Provider[StoreContext, ILedgerStore]]:
    """Return the provider ``nats``."""
    return [Provider("nats", _open, NatsLedgerStore, options=NatsLedgerOptions, check_url=locate)]


async def _open(context: StoreContext) -> ILedgerStore:
    options = context.options if isinstance(context.options, NatsLedgerOptions) else NatsLedgerOptions()
    return await open_ledger_store(context.url, context.environment, options, context.identity)


async def open_ledger_store(
    url: str, environment: Environment, options: NatsLedgerOptions, identity: str | None
) -> NatsLedgerStore:
    """
    Open the ledgers of an installation; create them if they do not exist.

    :param identity: of the metadata store that they must belong to; None: any.
    :raises InvalidInput: the URL names no usable servers.
    :raises StoreMismatch: the ledgers belong to another metadata store.
    :raises UnknownFormat: a later release has created them.
    :raises Unavailable: the servers do not answer.
    """
    connection = await NatsConnection.open(locate(url), options)
    try:
        requests = Requests(connection, options.patience_ms / 1000)
        installation = Installation(requests, connection.servers.prefix)
        await installation.open(identity, uuid4().hex, options)
    except BaseException:
        await connection.close()
        raise
    return NatsLedgerStore(requests, installation, environment, options)
