"""Going on after one of the two stores was restored from a backup: an operator's explicit command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from txnframework.broker._host import Host
from txnframework.broker._restoring.reconciling import Counts, Reconciling, Undecided
from txnframework.broker._serving.opening import open_stores
from txnframework.config import Config, redact_url
from txnframework.environment import Environment, SystemEnvironment
from txnframework.errors import InvalidInput, StoreMismatch
from txnframework.interfaces import ILedgerStore, IMetadataStore, IRestorable
from txnframework.model import records
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import restore_key
from txnframework.plugin import PluginRegistry, load_plugins

IDENTITY_BITS = 64

Progress = Callable[[str], None]
"""Is told, in a sentence each, what is being done."""


class Restored(Enum):
    """Which of the two stores is the older one, because it was restored from a backup."""

    METADATA = "metadata"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """
    What the operator knows and wants.

    ``taken_ms``: when the backup of the metadata store was taken; needed where that is the older one. ``forced``: the
    two never belonged together, and are to from now on. ``dry_run``: change nothing, only say what would be done.
    """

    restored: Restored
    taken_ms: int | None = None
    forced: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was done, or would be: the identities before, the one that both have now, and how much was changed."""

    metadata_identity: str
    ledger_identity: str
    identity: str
    counts: Counts


async def restore(
    config: Config,
    request: RestoreRequest,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    progress: Progress = lambda _: None,
) -> RestoreReport:
    """
    Make one pair of two stores again of which one was restored from a backup. Nobody else may have them open.

    Both take a new identity, so that what was left behind is never taken for this pair; transaction ids are skipped
    beyond everything that either store knows, so that none returns; every open transaction is aborted; and what cannot
    be decided any more is aborted:

    * *The metadata store is the older one.* Its headers are believed: COMMITTED and ABORTED are final. An entry that
      was appended before the backup was taken and has neither header nor abort record is committed: its intent and
      header stood before it, so they had been collected by then, and collection leaves an abort record where one is
      needed. An entry appended later without a header that says COMMITTED is *undecidable*: its transaction began, or
      ended, after the backup, whichever its number is, since a block of numbers that was reserved before may be given
      out after. It gets an abort record. What tells the two apart is when the entry was appended, by the ledger store's
      clock. A header stays for ``transactions.retention_ms`` after its end, so the line is drawn half of that before
      ``taken_ms``, and ``taken_ms`` may be wrong by as much either way.
    * *The ledger store is the older one.* The metadata store knows of every entry that is left, so nothing is
      undecidable but what is open. Cursors beyond the end of their segment are moved back to it, abort records and
      intents beyond it are dropped, and acknowledgments beyond it have no effect. Segments that are missing are made
      anew, empty. A transaction that was committed keeps what is left of it.
    * *They never belonged together* (``forced``). What the metadata store says of ids is about others, so every
      transactional entry of the ledgers is undecidable.

    Repeating it is safe, and finishes what was interrupted: the ledger store takes the new identity first and the
    metadata store last, so opening the pair is refused in between.

    :raises StoreMismatch: their identities differ, and nothing says that they ever belonged together.
    :raises InvalidInput: a store cannot take a new identity, or it was not said when the backup was taken.
    """
    if request.restored is Restored.METADATA and request.taken_ms is None and not request.forced:
        raise InvalidInput("say when the backup of the metadata store was taken: entries from after it are aborted")
    registry = registry or load_plugins()
    environment = environment or SystemEnvironment()
    quiet = msgspec.structs.replace(config, transactions=msgspec.structs.replace(config.transactions, sweep=False))
    metadata, ledgers = await open_stores(quiet, registry, environment, as_they_are=True)
    host = Host(quiet, registry, environment, metadata, ledgers)
    try:
        return await _restore(host, request, progress)
    finally:
        await host.close()


async def _restore(host: Host, request: RestoreRequest, progress: Progress) -> RestoreReport:
    metadata, ledgers = host.metadata, host.ledgers
    before = (metadata.identity, ledgers.identity)
    to = await _identity_to_take(host, request)
    if not request.dry_run:
        # From the second of these on opening is refused; until then the pair is as it was.
        record = records.RestoreRecord(ledgers=before[1], to=to)
        await metadata.put(Put(restore_key(), records.encode(record), Expect.ANY))
        await _restorable(ledgers).take_identity(to)
    counts = await Reconciling(host, _undecided(host, request), request.dry_run, progress).run()
    if not request.dry_run:
        await _restorable(metadata).take_identity(to)
        progress(f"both stores are {to} now")
    return RestoreReport(*before, to, counts)


async def _identity_to_take(host: Host, request: RestoreRequest) -> str:
    """Return the identity that both take: that of a restore which was interrupted, or else a new one."""
    metadata, ledgers = host.metadata, host.ledgers
    for store in (metadata, ledgers):
        _restorable(store)
    found = await metadata.get(restore_key())
    begun = None if found is None else records.decode(records.RestoreRecord, found)
    # A restored metadata store may hold the record of a restore of long ago; that one is about other identities.
    if begun is not None and begun.to != metadata.identity and ledgers.identity in (begun.ledgers, begun.to):
        return begun.to
    if metadata.identity != ledgers.identity and not request.forced:
        raise StoreMismatch(
            f"{redact_url(host.config.metadata.url)} is {metadata.identity!r}, but {redact_url(host.config.ledger.url)}"
            f" belongs to {ledgers.identity!r}: restoring is for two that were made together"
        )
    return f"restored-{host.environment.random_bits(IDENTITY_BITS):016x}"


def _restorable(store: IMetadataStore | ILedgerStore) -> IRestorable:
    if not IRestorable.providedBy(store):
        raise InvalidInput(f"the store {store.identity!r} cannot take a new identity; its plugin does not offer it")
    return store


def _undecided(host: Host, request: RestoreRequest) -> Undecided | None:
    """Return which entries cannot be decided without looking for a header that says so; None: there are none."""
    if request.forced:
        return Undecided(after_ms=0, headers_tell=False)
    if request.restored is Restored.LEDGER or request.taken_ms is None:
        return None
    return Undecided(max(0, request.taken_ms - host.config.transactions.retention_ms // 2), headers_tell=True)
