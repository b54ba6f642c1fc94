"""The copy of a deployment into other stores: an operator's command."""

from __future__ import annotations

import asyncio

from txnframework.broker.exclusion import require_alone, require_no_others, while_held
from txnframework.broker.segment_ends import verify_all_segments
from txnframework.broker.store_copy.audit import Audit, AuditReport, CopyProgress
from txnframework.broker.store_copy.claim import CopyClaim
from txnframework.broker.store_copy.closed_sources import MOVED
from txnframework.broker.store_copy.digests import (
    ahead,
    digest_records,
    digest_shape,
    entry_pages,
    names_of,
    record_pages,
    sequence_pages,
)
from txnframework.broker.store_copy.pairs import CopyablePair, open_pairs
from txnframework.broker.store_copy.request import CopyReport, CopyRequest
from txnframework.broker.stores import COPIED, verify_store_pair
from txnframework.config import Config
from txnframework.environment import Environment, SystemEnvironment
from txnframework.errors import Corrupt, DeploymentClosed, InvalidInput, Unavailable, VersionMismatch
from txnframework.interfaces import ICopyableMetadataStore, IRestorable
from txnframework.model import EntryRange, Expect, IndexedRecord, Key, Put, paths
from txnframework.model.records import CopyRecord
from txnframework.plugin import PluginRegistry, load_plugins

IDENTITY_BITS = 64
LEDGERS_NOTED = 50
"""A copy that is repeated begins at most this many ledgers before the one at which it was interrupted."""
TOGETHER = 200
"""The number of records that are written at the same time."""
COPY_ENTRIES, COPY_RECORDS = "copying entries", "copying records"


async def copy_stores(
    source: Config,
    target: Config,
    request: CopyRequest,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    progress: CopyProgress = lambda *_: None,
) -> CopyReport:
    """
    Copy the metadata and the ledgers of a deployment into empty stores. No other process may have any of them open.

    Everything is copied but leases: open transactions are open in the copy, with the same ids, and messages have the
    same positions. If both deployments name the same ledger store, only the metadata is copied.

    *Identity.* The copy has an identity of its own, so stores of the two are never taken for a pair. The source is
    closed: its ledgers take an identity that its metadata store does not have, and opening it is refused with an error
    that names the copy. ``reopen`` is the way back. With ``keep_source`` the source is opened again when the copy is
    verified.

    A repeated call is safe, and completes a copy that was interrupted at any step. The steps, with the state that each
    of them leaves if it is the last one:

    1. Records of the copy are put into the target and into the source. Both deployments are as they were.
    2. The ledgers of the target take the identity of the copy. The target cannot be opened.
    3. The ledgers of the source take theirs. The source cannot be opened either.
    4. Numbers and ids are skipped, ledgers and records are copied. Each of these calls may be repeated.
    5. Everything is compared, and the record says so. From here on nothing is copied any more.
    6. With ``keep_source``, the ledgers of the source take their old identity.
    7. The record in the source says that the copy may be in use. The metadata store of the target takes the identity of
       the copy, which opens the target.

    A run that completes an interrupted one takes the copy over: it raises the versions of its records. A process that
    was only suspended then stops with an error instead of writing into a copy that is used.

    :raises InvalidInput: a store cannot be copied, the target is not empty, the source was opened since the copy began,
        or the request is another one than that of the interrupted call.
    :raises StoreMismatch: the source is not a pair.
    :raises DeploymentClosed: the source was copied into other stores.
    :raises Unavailable: another process has one of the deployments open, or has taken this copy over.
    :raises Corrupt: the comparison found differences; the error names the first ones. Neither deployment can be opened.
    """
    registry = registry or load_plugins()
    environment = environment or SystemEnvironment()
    async with open_pairs(source, target, registry, environment) as (from_pair, to_pair):
        return await StoreCopy(from_pair, to_pair, request, environment, progress).run()


async def audit_stores(
    source: Config,
    target: Config,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    progress: CopyProgress = lambda *_: None,
) -> AuditReport:
    """
    Compare two deployments by counts and hashes; nothing is changed. Both must be at rest.

    :raises InvalidInput: a store cannot be copied.
    """
    registry = registry or load_plugins()
    environment = environment or SystemEnvironment()
    async with open_pairs(source, target, registry, environment) as (from_pair, to_pair):
        return await Audit(from_pair, to_pair, progress).run()


class StoreCopy:
    """One call of ``copy_stores`` on open stores."""

    def __init__(
        self,
        source: CopyablePair,
        target: CopyablePair,
        request: CopyRequest,
        environment: Environment,
        progress: CopyProgress = lambda *_: None,
    ) -> None:
        self._source = source
        self._target = target
        self._request = request
        self._environment = environment
        self._progress = progress
        self._is_shared = source.ledgers is target.ledgers
        self._claim = CopyClaim(source.metadata, target.metadata)
        self._entries_total = 0
        self._report = CopyReport(source.metadata.identity, "")

    async def run(self) -> CopyReport:
        """Copy, or complete a copy that was interrupted, or plan a copy."""
        if self._request.dry_run:
            return await self._run()
        leases = [await require_alone(pair.metadata) for pair in (self._source, self._target)]
        return await while_held(leases, self._run())

    async def _run(self) -> CopyReport:
        record = await self._begun()
        if record is None:
            await self._require_fit()
            self._report.identity = f"{COPIED}{self._environment.random_bits(IDENTITY_BITS):016x}"
            record = CopyRecord(
                source=self._report.source_identity,
                to=self._report.identity,
                keep_source=self._request.keep_source,
            )
        self._report.identity = record.to
        self._report.was_complete = record.to == self._target.metadata.identity
        if self._report.was_complete:
            return self._report
        await self._count()
        if self._request.dry_run:
            return self._report
        record = await self._claim.take(record, is_shared=self._is_shared)
        if record.step != "verified":
            record = await self._close(record)
            record = await self._copy(record)
            self._report.audit = await self._verified()
            record = await self._claim.note(record, step="verified")
        await self._finish(record)
        return self._report

    # -- what there is ----------------------------------------------------------------------------------

    async def _begun(self) -> CopyRecord | None:
        """Return the record of a copy of this source into this target that was begun, or None."""
        record = await self._claim.begun()
        if record is None:
            return None
        source, ledgers = self._source.identities
        if record.source != source:
            raise InvalidInput(
                f"{self._target.metadata_url} contains a copy of {record.source!r}, complete or not, and the source is"
                f" {source!r}; name empty stores"
            )
        if record.to == self._target.metadata.identity and (record.keep_source or ledgers != source):
            return record
        if record.to == self._target.metadata.identity:
            raise InvalidInput(
                f"the copy {record.to!r} is complete, and the source {source!r} was opened again since; name empty"
                " stores"
            )
        if record.keep_source != self._request.keep_source:
            kept = "kept" if record.keep_source else "closed"
            raise InvalidInput(f"this copy was begun with a source that is {kept}; repeat it with the same request")
        if ledgers != self._closed_as(record.to) and not (ledgers == source and self._may_be_open(record)):
            raise InvalidInput(
                f"the source {source!r} was opened again after this copy began; empty the target, and begin again"
            )
        if record.step != "begun" and self._target.ledgers.identity != record.to:
            raise InvalidInput(
                f"{self._target.ledger_url} is {self._target.ledgers.identity!r}, and not the ledgers of the copy"
                f" {record.to!r} that was begun; name the stores with which it was begun"
            )
        return record

    def _may_be_open(self, record: CopyRecord) -> bool:
        return record.step == "begun" or (record.step == "verified" and record.keep_source)

    def _closed_as(self, to: str) -> str:
        """Return the identity of the ledgers of the closed source; shared ledgers belong to the copy."""
        return to if self._is_shared else f"{MOVED}{to}"

    async def _require_fit(self) -> None:
        """Refuse a source that cannot be used, and a target that is."""
        source, ledgers = self._source.identities
        if ledgers != source and ledgers.removeprefix(MOVED).startswith(COPIED):
            raise DeploymentClosed(
                f"the deployment {source!r} is closed, because it was copied: its ledgers are {ledgers!r}; reopen it"
                " before it is copied again"
            )
        urls = self._source.metadata_url, self._source.ledger_url
        await verify_store_pair(self._source.metadata, self._source.ledgers, *urls)
        await verify_all_segments(self._source.metadata, self._source.ledgers)
        if self._is_shared and self._request.keep_source:
            raise InvalidInput("a source that shares its ledgers with the copy cannot be kept")
        await self._require_empty()

    async def _require_empty(self) -> None:
        async for page in record_pages(self._target.metadata):
            if page:
                raise InvalidInput(
                    f"{self._target.metadata_url} is not empty: it has the record {page[0].record.key.path}"
                )
        if self._is_shared:
            return
        if self._target.ledgers.identity != self._target.metadata.identity:
            raise InvalidInput(
                f"{self._target.ledger_url} belongs to {self._target.ledgers.identity!r}, not to"
                f" {self._target.metadata_url}; name two new stores"
            )
        if names := await self._target.ledgers.list_names("", "", 1):
            raise InvalidInput(f"{self._target.ledger_url} is not empty: it has the ledger {names[0]}")

    async def _count(self) -> None:
        """Count what there is to copy."""
        families: dict[str, int] = {}
        if self._request.dry_run:
            async for page in record_pages(self._source.metadata):
                for one in page:
                    family = paths.family_of(one.record.key.path)
                    families[family] = families.get(family, 0) + 1
            self._report.families = families
            self._report.records = sum(families.values())
        if self._is_shared:
            return
        async for name in names_of(self._source.ledgers):
            shape = await self._source.ledgers.ledger_shape(name)
            self._entries_total += sum(one.entries for one in shape.ledgers)
            if self._request.dry_run:
                self._report.ledgers += 1
        if self._request.dry_run:
            self._report.entries = self._entries_total

    # -- the steps --------------------------------------------------------------------------------------

    async def _close(self, record: CopyRecord) -> CopyRecord:
        """Close both deployments."""
        if record.step == "begun":
            # Crash window: until the ledgers have the identity of the copy, the target may be opened and used.
            if self._target.ledgers.identity not in (record.to, self._closed_as(record.to)):
                await self._require_empty()
            await self._take(self._target, record.to)
            if not self._is_shared:
                await self._take(self._source, self._closed_as(record.to))
            record = await self._claim.note(record, step="copying")
        # A process that opened the source after the first look had to do so before it was closed.
        await self._require_no_others()
        return record

    async def _require_no_others(self) -> None:
        for pair in (self._source, self._target):
            await require_no_others(pair.metadata)

    async def _copy(self, record: CopyRecord) -> CopyRecord:
        source, target = self._source, self._target
        if not self._is_shared:
            await target.ledgers.skip_ids(
                await source.ledgers.last_ledger_id(), await source.ledgers.highest_txn_numbers()
            )
            noted = 0
            async for name in names_of(source.ledgers, record.upto):
                await self._copy_ledger(name)
                noted += 1
                if noted % LEDGERS_NOTED == 0:
                    record = await self._claim.note(record, upto=name)
        await target.metadata.skip_numbers(await source.metadata.last_number())
        async for page in ahead(record_pages(source.metadata)):
            for at in range(0, len(page), TOGETHER):
                # A batch cannot check the record of the copy: it has another partition key. The window that is left: a
                # process that is suspended behind this look, and replaced, may put at most these records. None of them
                # replaces another; one that was deleted from the copy since comes back.
                await self._claim.require()
                await asyncio.gather(*(_put(target.metadata, one) for one in page[at : at + TOGETHER]))
            self._report.records += len(page)
            self._progress(COPY_RECORDS, self._report.records, None)
        return record

    async def _copy_ledger(self, name: str) -> None:
        source, target = self._source.ledgers, self._target.ledgers
        shape = await source.ledger_shape(name)
        # The window that is left behind each look: see the records. An import adds only entries that directly follow.
        await self._claim.require()
        after = await target.import_ledger(name, shape)
        async for page in ahead(entry_pages(source, name, EntryRange(after, shape.whole.upto))):
            await self._claim.require()
            try:
                await target.import_entries(name, page)
            except InvalidInput:
                await self._claim.require()  # another run has imported them
                raise
            self._report.entries += len(page)
            self._progress(COPY_ENTRIES, self._report.entries, self._entries_total)
        async for sequences in sequence_pages(source, name):
            await self._claim.require()
            await target.import_sequences(name, sequences)
            self._report.sequences += len(sequences)
        self._report.ledgers += 1

    async def _verified(self) -> AuditReport:
        """Compare everything, and refuse a copy that differs or a source that was used meanwhile."""
        audit = await Audit(self._source, self._target, self._progress, self._entries_total).run()
        if audit.differing:
            first = audit.differences[0]
            raise Corrupt(
                f"{audit.differing} differences between the source and the copy; the first one is in the {first.what}"
                f" of {first.name}: {first.source.error or first.source.count} in the source,"
                f" {first.target.error or first.target.count} in the copy"
            )
        await self._require_no_others()
        # A process that had the source open before it was closed, and had no lease until now, may have gone on. The
        # window that is left: it may do so after these last looks. An operator stops all processes first.
        sides = await asyncio.gather(*(digest_records(pair.metadata) for pair in (self._source, self._target)))
        if sides[0] != sides[1]:
            raise Unavailable(
                "another process changes records of the source; stop it, open the source again, and begin again with"
                " empty stores"
            )
        if not self._is_shared:
            async for name in names_of(self._source.ledgers):
                shapes = [await pair.ledgers.ledger_shape(name) for pair in (self._source, self._target)]
                if digest_shape(shapes[0]) != digest_shape(shapes[1]):
                    raise Unavailable(f"another process appends to {name} in the source; stop it, and begin again")
        return audit

    async def _finish(self, record: CopyRecord) -> None:
        """Open what is to be open; the record in the source was written by this run, so no process opened it again."""
        await self._claim.finish(record, is_shared=self._is_shared)
        # The window that is left behind the notes, here and in _close: taking an identity is unconditional. A process
        # that is suspended in it, and replaced, gives an identity again that its successor has given.
        if record.keep_source:
            await self._take(self._source, record.source)
            await self._claim.note(record)
        target = self._target.metadata
        assert IRestorable.providedBy(target)
        await target.take_identity(record.to)

    async def _take(self, pair: CopyablePair, identity: str) -> None:
        """Give the ledgers of a pair another identity."""
        assert IRestorable.providedBy(pair.ledgers)
        if pair.ledgers.identity != identity:
            await self._claim.require()
            await pair.ledgers.take_identity(identity)


async def _put(target: ICopyableMetadataStore, one: IndexedRecord) -> None:
    """
    Put a record into the target, unless an interrupted call has put it.

    :raises Unavailable: there is another record.
    """
    key = Key(one.record.key.path, one.record.key.partition)
    try:
        await target.put(Put(key, one.record.value, Expect.ABSENT, one.indexes))
    except VersionMismatch as mismatch:
        found = await target.get(key)
        if found is not None and found.value == one.record.value:
            return
        raise Unavailable(
            f"the record {key.path} of the copy is not that of the source: another process uses the copy, or changed"
            " the source after this copy began; stop it, open the source again, and begin again with empty stores"
        ) from mismatch
