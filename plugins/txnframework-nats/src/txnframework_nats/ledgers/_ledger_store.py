"""The ledger store on JetStream: it creates, opens, lists and deletes managed ledgers."""

from __future__ import annotations

import asyncio
from typing import TypeVar
from uuid import uuid4

from zope.interface import implementer

from txnframework.environment import Environment
from txnframework.errors import InvalidInput, LedgerNotFound, Unavailable
from txnframework.interfaces import ICopyableLedgerStore, ILedgerStore, IManagedLedger, IRestorable
from txnframework.model import EntryRange, LedgerShape, Limit, Position, RememberedSequence, StoredEntry
from txnframework.plugin import Provider, StoreContext
from txnframework_nats._options import locate
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.ledgers._installation import Installation
from txnframework_nats.ledgers._log import Change, creation
from txnframework_nats.ledgers._managed_ledger import NatsManagedLedger
from txnframework_nats.ledgers._numbers import TransactionNumbers
from txnframework_nats.ledgers._open_logs import OpenLog, OpenLogs, new_token
from txnframework_nats.ledgers._options import NatsLedgerOptions
from txnframework_nats.ledgers._records import Created, Deleted, Imported, encode
from txnframework_nats.ledgers._requests import Refusal, Requests, Unanswered
from txnframework_nats.ledgers._shard import FoundName, Shard, digest
from txnframework_nats.ledgers._state import LedgerState
from txnframework_nats.ledgers._store_copy import LedgerCopies, import_record

T = TypeVar("T")

_DELETION_KEPT_S = 7 * 24 * 3600
_TRIES = 20

_REFUSALS_MAX = 2
"""A deletion that was outrun so often asks the writers to wait."""


@implementer(ICopyableLedgerStore, IRestorable)
class NatsLedgerStore:
    """Managed ledgers in a few streams, which any number of processes use at once."""

    location: object = None

    def __init__(
        self,
        requests: Requests,
        installation: Installation,
        environment: Environment,
        options: NatsLedgerOptions,
    ) -> None:
        self.identity = installation.identity
        self.requests = requests
        self._installation = installation
        self._numbers = {shard.stream: TransactionNumbers(shard) for shard in installation.shards}
        self._logs = OpenLogs(requests, self._numbers, environment, options)
        self._copies = LedgerCopies(self._logs, self._log, requests.message_bytes)

    @property
    def connection(self) -> NatsConnection:
        """The connection of the store."""
        return self.requests.connection

    async def create(self, name: str) -> IManagedLedger:
        """Create an empty managed ledger, or open the existing one."""
        shard = self._shard(name)
        numbering = self._installation.numbering(shard)
        opened = await self._created(name, shard, Created(new_token(), name, numbering))
        return NatsManagedLedger(self._logs, opened)

    async def _created(self, name: str, shard: Shard, first: Created | Imported) -> OpenLog:
        """Return the log of a name; if there is none, one with this first record."""
        self._logs.require_open()
        reason, attempts = "others create and delete it", self.requests.attempts()
        for _ in range(_TRIES):
            found = await shard.find_name(name)
            if found is not None:
                try:
                    return await self._logs.open(shard, found)
                except LedgerNotFound:
                    await self._remove(shard, found)
                    continue
            log = uuid4().hex
            drafts = [shard.name_draft(name, log), creation(first, shard.subjects(log))]
            try:
                stored = await self.requests.store(drafts)
            except Unanswered as error:
                # Whether it was created is found out above. If it comes later, it creates an empty ledger.
                reason = str(error)
                await attempts.pause()
                continue
            if isinstance(stored, Refusal):
                reason = stored.reason
                await attempts.pause()
        raise Unavailable(f"ledger {name} was not created: {reason}")

    async def open(self, name: str) -> IManagedLedger:
        """Open the managed ledger, or raise LedgerNotFound."""
        return NatsManagedLedger(self._logs, await self._log(name))

    async def delete(self, name: str, upto_ledger_id: int | None) -> None:
        """Delete the managed ledger with its data, unless it is a later one; an absent one succeeds."""
        self._logs.require_open()
        shard = self._shard(name)
        found = await shard.find_name(name)
        if found is None:
            return

        def decide(state: LedgerState) -> Change[bool]:
            if state.deleted:
                return Change(True)
            if upto_ledger_id is not None and state.open.ledger_id > upto_ledger_id:
                return Change(False)
            return Change(True, Deleted(new_token()), lifetime_s=_DELETION_KEPT_S)

        try:
            opened = await self._logs.open(shard, found)
            deleted = await self._logs.finish(opened.log.change(decide, _REFUSALS_MAX))
        except LedgerNotFound:
            deleted = True
        if deleted:
            # Crash window: the ledger is deleted for everybody, and its name and its data are there still. The
            # process that creates or deletes the name next removes them.
            await self._remove(shard, found)

    async def list_names(self, prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names that begin with ``prefix``, in order, after ``after``."""
        self._logs.require_open()
        pages = await asyncio.gather(*(shard.names() for shard in self._installation.shards))
        names = sorted(name for page in pages for name in page if name.startswith(prefix) and name > after)
        return tuple(names[:items_max])

    async def highest_txn_numbers(self) -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator."""
        self._logs.require_open()
        highest: dict[int, int] = {}
        for found in await asyncio.gather(*(numbers.highest() for numbers in self._numbers.values())):
            for coordinator, number in found.items():
                highest[coordinator] = max(number, highest.get(coordinator, -1))
        return highest

    async def take_identity(self, identity: str) -> None:
        """Bind the ledgers to a metadata store of another identity."""
        self._logs.require_open()
        await self._installation.take_identity(identity)
        self.identity = identity

    async def last_ledger_id(self) -> int:
        """Return an id that is not below that of any ledger the store has had."""
        self._logs.require_open()
        return await self._installation.last_ledger_id()

    async def skip_ids(self, ledger_id: int, txn_numbers: dict[int, int]) -> None:
        """Give no ledger id up to ``ledger_id``, and raise the highest transaction numbers."""
        self._logs.require_open()
        await self._installation.skip_ids(ledger_id)
        first = self._installation.shards[0]
        await self._numbers[first.stream].note(txn_numbers)

    async def ledger_shape(self, name: str) -> LedgerShape:
        """Return what a managed ledger is apart from its entries and its window."""
        return await self._copies.shape(name)

    async def stored_entries(self, name: str, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of the range, with their times."""
        return await self._copies.entries(name, entries, limit)

    async def remembered_sequences(
        self, name: str, after: RememberedSequence | None, items_max: int
    ) -> tuple[RememberedSequence, ...]:
        """Return the first copies in the window behind ``after``."""
        return await self._copies.sequences(name, after, items_max)

    async def import_ledger(self, name: str, shape: LedgerShape) -> Position:
        """Create a managed ledger of this shape, or find it; return the last entry that was imported."""
        first_id, last = shape.ledgers[0].ledger_id, shape.ledgers[-1].ledger_id
        if first_id < 1:
            raise InvalidInput(f"ledger {first_id} of {name}: ids of this store begin with 1")
        if last > self._installation.skipped:
            raise InvalidInput(f"ledger {last} of {name}: its id was not skipped, so another ledger may get it")
        shard = self._shard(name)
        first = import_record(name, shape, self._installation.numbering(shard), new_token())
        if len(encode(first)) > self.requests.message_bytes:
            raise InvalidInput(f"{name} has {len(shape.ledgers)} ledgers: too many for one message of the servers")
        await self._created(name, shard, first)
        return await self._copies.imported(name)

    async def import_entries(self, name: str, entries: tuple[StoredEntry, ...]) -> None:
        """Add entries to a managed ledger that is being imported."""
        await self._copies.import_entries(name, entries)

    async def import_sequences(self, name: str, sequences: tuple[RememberedSequence, ...]) -> None:
        """Add copies to the window of a managed ledger that is being imported."""
        await self._copies.import_sequences(name, sequences)

    async def close(self) -> None:
        """Close every ledger; may be repeated."""
        try:
            await self._logs.close()
        finally:
            await self.requests.connection.close()

    async def _log(self, name: str) -> OpenLog:
        """Return the log of a name, or raise LedgerNotFound."""
        self._logs.require_open()
        shard = self._shard(name)
        found = await shard.find_name(name)
        if found is None:
            raise LedgerNotFound(name)
        return await self._logs.open(shard, found)

    async def _remove(self, shard: Shard, found: FoundName) -> None:
        """Remove what is left of a deleted ledger, and its name last: it leads to the rest."""
        subjects = shard.subjects(found.named.log)
        for subject in (subjects.pieces, subjects.snapshots):
            await self.requests.purge(shard.stream, subject, None)
        last = await self.requests.last_at_leader(shard.stream, subjects.records)
        if last is not None:
            # The record of the deletion stays for some days: open handles find it.
            await self.requests.purge(shard.stream, subjects.records, last.number)
        await shard.remove_name(found.named.name, found.number)

    def _shard(self, name: str) -> Shard:
        try:
            token = digest(name)
        except UnicodeEncodeError as error:
            raise InvalidInput("the name of a ledger has no UTF-8 form") from error
        shards = self._installation.shards
        return shards[int(token[:8], 16) % len(shards)]


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
        requests = Requests(connection, options.patience_ms / 1000, environment.random_bits)
        installation = Installation(requests, connection.servers.prefix)
        await installation.open(identity, uuid4().hex, options)
    except BaseException:
        await connection.close()
        raise
    return NatsLedgerStore(requests, installation, environment, options)
