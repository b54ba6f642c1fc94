"""The way back from a copy: its source is opened again."""

from __future__ import annotations

from contextlib import AsyncExitStack

from txnframework.broker.exclusion import require_alone, require_no_others
from txnframework.broker.store_copy.claim import REPLACED
from txnframework.broker.stores import open_ledger_store, open_metadata_store
from txnframework.config import Config
from txnframework.environment import Environment, SystemEnvironment
from txnframework.errors import InvalidInput, Unavailable, VersionMismatch
from txnframework.interfaces import ILedgerStore, IMetadataStore, IRestorable
from txnframework.model import Put, Record, paths, records
from txnframework.model.records import CopiedRecord, CopyRecord
from txnframework.plugin import PluginRegistry, load_plugins

MOVED = "moved-to-"
"""How the identity of the ledgers of a closed source begins; that of the copy follows."""


async def reopen(
    source: Config,
    target: Config | None = None,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
) -> str:
    """
    Open the source of a copy again, whether the copy is complete or not; return the identity of the copy.

    An incomplete copy cannot be completed afterwards. A complete one stays usable, as another deployment, unless it has
    the same ledger store. Then it loses its ledgers, so it must be at rest: ``target`` is its configuration. A repeated
    call is safe.

    :raises InvalidInput: the source is not closed, the ledgers are not those that its copy left, or the copy has the
        same ledger store and ``target`` is missing or another deployment.
    :raises Unavailable: another process has one of the two open.
    """
    registry = registry or load_plugins()
    environment = environment or SystemEnvironment()
    async with AsyncExitStack() as stack:
        metadata = await open_metadata_store(source, registry, environment)
        stack.push_async_callback(metadata.close)
        # Before anything is read: from here on only a copier whose session has expired can write the records.
        await require_alone(metadata)
        ledgers = await open_ledger_store(source, registry, environment, None)
        stack.push_async_callback(ledgers.close)
        found, copied = await _copied(metadata, ledgers)
        users = [metadata]
        if copied.is_shared and copied.is_finished:
            users.append(await _open_copy(copied, target, registry, environment, stack))
        # A copier that was suspended stops at this: it cannot finish its copy any more.
        try:
            await metadata.put(Put(paths.copied_key(), found.value, found.version))
        except VersionMismatch as mismatch:
            raise Unavailable(REPLACED) from mismatch
        await _give_back(ledgers, metadata.identity, copied, users)
    return copied.to


async def _copied(metadata: IMetadataStore, ledgers: ILedgerStore) -> tuple[Record, CopiedRecord]:
    """Return the record of the copy that has closed this source."""
    begun = await metadata.get(paths.copy_key())
    if begun is not None:
        into = records.decode(CopyRecord, begun)
        if into.to != metadata.identity and into.to == ledgers.identity:
            raise InvalidInput(
                f"{metadata.identity!r} is the target of the copy {into.to!r}, which is not complete: complete it, or"
                " open its source again"
            )
    found = await metadata.get(paths.copied_key())
    if found is None or ledgers.identity == metadata.identity:
        raise InvalidInput(f"the deployment {metadata.identity!r} is not closed by a copy")
    copied = records.decode(CopiedRecord, found)
    left = {f"{MOVED}{copied.to}"} | ({copied.to} if copied.is_shared else set())
    if ledgers.identity not in left:
        raise InvalidInput(
            f"the ledgers are {ledgers.identity!r}, and not those of {metadata.identity!r}, which was copied to"
            f" {copied.to!r}; name the two stores of the source"
        )
    return found, copied


async def _open_copy(
    copied: CopiedRecord,
    target: Config | None,
    registry: PluginRegistry,
    environment: Environment,
    stack: AsyncExitStack,
) -> IMetadataStore:
    """Open the metadata store of a copy that has the same ledger store, and refuse while it is used."""
    if target is None:
        raise InvalidInput(
            f"the ledgers belong to the copy {copied.to!r}, which is complete and would lose them: stop its processes,"
            " and name its configuration too (--to)"
        )
    metadata = await open_metadata_store(target, registry, environment)
    stack.push_async_callback(metadata.close)
    begun = await metadata.get(paths.copy_key())
    if begun is None or records.decode(CopyRecord, begun).to != copied.to:
        raise InvalidInput(f"{metadata.identity!r} is not the copy {copied.to!r}; name the configuration of that one")
    await require_alone(metadata)
    return metadata


async def _give_back(ledgers: ILedgerStore, identity: str, copied: CopiedRecord, users: list[IMetadataStore]) -> None:
    """
    Give the ledgers to the source again.

    Shared ledgers first take an identity that no process can open: a process that opened the copy after the first look
    has done so before that. Crash window: neither deployment can be opened then, until the call is repeated.
    """
    assert IRestorable.providedBy(ledgers)
    if copied.is_shared:
        former = ledgers.identity
        await ledgers.take_identity(f"{MOVED}{copied.to}")
        try:
            for metadata in users:
                await require_no_others(metadata)
        except Unavailable:
            await ledgers.take_identity(former)
            raise
    await ledgers.take_identity(identity)
