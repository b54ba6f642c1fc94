"""Repair of a pair of stores of which one was restored from a backup: an operator's command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from txnframework.broker.coordination import expected_version
from txnframework.broker.exclusion import RESTORE, require_alone
from txnframework.broker.host import Host
from txnframework.broker.restore.reconciliation import Counts, Reconciliation, UndecidedEntries
from txnframework.broker.stores import HostContext, beyond_reserved, open_stores
from txnframework.config import Config, redact_url
from txnframework.environment import Environment, SystemEnvironment
from txnframework.errors import InvalidInput, StoreMismatch
from txnframework.interfaces import ILedgerStore, IMetadataStore, IRestorable
from txnframework.model import index_keys, paths, records
from txnframework.model.entry_view import EntryView
from txnframework.model.ids import LOG_FAMILY, Branch
from txnframework.model.indexes import TXN_BY_FINAL_STATE
from txnframework.model.metadata import IndexRange, Put
from txnframework.model.paths import restore_key
from txnframework.model.positions import EntryRange, Limit
from txnframework.model.transactions import State
from txnframework.plugin import PluginRegistry, load_plugins

_PAGE = Limit(500)
_OTHER_WAY = (
    "the metadata store is the older one; use --restored metadata --taken TIME, with the time at which its backup was"
    " taken"
)

IDENTITY_BITS = 64
SETTLE_MS_MAX = 1_000
"""The longest time to settle an aborted transaction's participants; a sweep settles those that were not reached."""
Progress = Callable[[str], None]
"""Receives one sentence for each step."""


async def require_metadata_older(host: Host, taken_ms: int) -> None:
    """
    Refuse a backup time after which the metadata store still knows the end of a transaction.

    Transactions that committed after that time, and have been forgotten since, would be aborted.

    :raises InvalidInput: the store knows such a transaction.
    """
    later_ms = taken_ms + host.config.transactions.retention_ms // 2
    for state in (State.COMMITTED, State.ABORTED):
        whole = index_keys.prefix_range(TXN_BY_FINAL_STATE, state.value)
        later = IndexRange(whole.index, index_keys.encode(state.value, later_ms), whole.stop)
        if (await host.metadata.scan_index(later, 1)).records:
            raise InvalidInput(
                "the metadata store contains transactions that ended after that backup was taken: it is not this backup"
            )


async def require_ledgers_older(host: Host) -> None:
    """
    Refuse ledgers with entries that a newer metadata store would know, because aborted entries would then count.

    A newer store has reserved every transaction number in the ledgers. It also has a header or an abort record of each
    recent writer, because a header is kept for ``transactions.retention_ms`` after the end. Half of that time is a
    margin for clocks. Older entries prove nothing, so a wrong request may still go unnoticed.

    :raises InvalidInput: the ledgers hold such a number or such an entry.
    """
    found = await beyond_reserved(host.metadata, host.ledgers)
    if found is not None:
        raise InvalidInput(
            f"the ledgers contain transaction number {found.number} of coordinator {found.coordinator}, but the"
            f" metadata store has reserved only numbers below {found.reserved}: {_OTHER_WAY}"
        )
    since_ms = host.environment.now_ms() - host.config.transactions.retention_ms // 2
    after = ""
    while names := await host.ledgers.list_names("segment://", after, _PAGE.items):
        for name in names:
            await _require_known(host, name, since_ms)
        after = names[-1]


async def _require_known(host: Host, name: str, since_ms: int) -> None:
    """Refuse a segment with an entry since ``since_ms`` of a branch that the metadata store does not know."""
    ledger = await host.ledgers.open(name)
    upto = (await ledger.tail()).last_confirmed
    after = await ledger.find_time(max(0, since_ms))
    known: set[tuple[int, Branch]] = set()
    while found := await ledger.read(EntryRange(after, upto), _PAGE):
        for entry in found:
            branch = EntryView(entry.data, entry.position).branch
            if branch is None or branch.txn_id.family == LOG_FAMILY or (entry.position.ledger_id, branch) in known:
                continue
            if not await _is_known(host.metadata, name, entry.position.ledger_id, branch):
                raise InvalidInput(
                    f"{name} contains an entry at {entry.position} of transaction {branch.txn_id}, which the metadata"
                    f" store does not know: {_OTHER_WAY}"
                )
            known.add((entry.position.ledger_id, branch))
        after = found[-1].position


async def _is_known(store: IMetadataStore, name: str, ledger_id: int, branch: Branch) -> bool:
    """Return whether there is a header, or a record that says that the branch was aborted there."""
    if await store.get(paths.header_key(branch.txn_id)) is not None:
        return True
    return await store.get(paths.abort_record_key(name, ledger_id, branch.txn_id, branch.number)) is not None


class Restored(Enum):
    """The older one of the two stores, which was restored from a backup."""

    METADATA = "metadata"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """
    The operator's knowledge and choices.

    ``taken_ms``: the time at which the backup of the metadata store was taken, required if that store is the older one.
    ``forced``: the two stores never belonged together, and will from now on. ``dry_run``: report the changes without
    making them.
    """

    restored: Restored
    taken_ms: int | None = None
    forced: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """
    The changes, made or planned: the identities before, the identity of both stores now, and the number of changes.
    """

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
    Repair a pair of stores after one was restored from a backup. No other process may have them open.

    Both stores take a new identity, so that nothing left of the old pair is mistaken for this pair. Transaction ids are
    skipped beyond all ids that either store knows, so that no id is used again. Undecidable entries are aborted.
    Finally every open transaction is aborted:

    * *The metadata store is the older one.* Its headers are trusted: COMMITTED and ABORTED are final. An entry that was
      appended before the backup was taken and has neither header nor abort record is committed. Its intent and header
      were stored before it, so they had been collected by then, and collection leaves an abort record where one is
      needed. An entry that was appended later without a header that says COMMITTED is *undecidable*: its transaction
      began or ended after the backup. Its number does not matter, because a block of numbers that was reserved before
      the backup may be assigned after it. The entry gets an abort record. The append time, by the ledger store's clock,
      distinguishes the two cases. A header is kept for ``transactions.retention_ms`` after its end. So the limit is
      half of that before ``taken_ms``, and ``taken_ms`` may be wrong by as much in either direction.
    * *The ledger store is the older one.* The metadata store knows every entry that is left, so only open transactions
      are undecidable. Cursors beyond the end of their segment are moved back to it. Abort records and intents beyond it
      are dropped, and acknowledgments beyond it have no effect. Missing segments are created again, empty. The
      remaining parts of a committed transaction stay committed.
    * *They never belonged together* (``forced``). The ids in the metadata store are those of other transactions, so
      every transactional entry of the metadata family in the ledgers is undecidable.

    Entries and outcomes of the log family are all in the ledger store, as of one moment. So they are never undecidable,
    whichever store is older. The effects of the family's acknowledgments on cursors are in the metadata store, like
    those of plain acknowledgments. An older metadata store redelivers messages that were acknowledged since, even if
    the transaction's messages are kept. A newer one keeps the acknowledgments, even if the transaction is open again in
    the ledgers and is aborted.

    A repeated call is safe, and completes an interrupted restore. The ledger store takes the new identity first and the
    metadata store last, so opening the pair is refused in between. The repeated call must have the same request.

    :raises StoreMismatch: the identities differ, and nothing shows that the stores ever belonged together.
    :raises InvalidInput: a store cannot take a new identity, the backup time is missing, or the stores contradict the
        request. They contradict it in these cases. The backup time is in the future. The metadata store knows later
        events, was restored since then, or already belongs to the ledgers that were to be forced. The ledgers that
        should be older hold entries that the metadata store does not know. Nothing was changed.
    :raises Unavailable: another process has the stores open, or had them open when a backup was taken a moment ago.
    """
    if request.restored is Restored.METADATA and request.taken_ms is None and not request.forced:
        raise InvalidInput(
            "the time at which the backup of the metadata store was taken is required: later entries are aborted"
        )
    registry = registry or load_plugins()
    environment = environment or SystemEnvironment()
    if request.taken_ms is not None and request.taken_ms > environment.now_ms() + config.transactions.max_clock_skew_ms:
        raise InvalidInput("the time at which the backup was taken is in the future")
    settle_ms = min(SETTLE_MS_MAX, config.transactions.end_timeout_ms)
    alone = msgspec.structs.replace(config.transactions, sweep=False, end_timeout_ms=settle_ms)
    quiet = msgspec.structs.replace(config, transactions=alone)
    metadata, ledgers = await open_stores(quiet, registry, environment, as_they_are=True)
    host = Host(HostContext(quiet, registry, environment, metadata, ledgers))
    try:
        return await _restore(host, request, progress)
    finally:
        await host.close()


async def _restore(host: Host, request: RestoreRequest, progress: Progress) -> RestoreReport:
    metadata, ledgers = host.metadata, host.ledgers
    for store in (metadata, ledgers):
        _restorable(store)
    if not request.dry_run:
        # A transaction that a process commits while its entries are being decided would be confirmed there, and aborted
        # here.
        await require_alone(metadata, RESTORE)
    before = (metadata.identity, ledgers.identity)
    found = await metadata.get(restore_key())
    begun = None if found is None else records.decode(records.RestoreRecord, found)
    to = await _identity_to_take(host, request, begun)
    if not request.dry_run:
        # Opening is refused from the second of these writes on; until then the pair is unchanged.
        record = records.RestoreRecord(
            ledgers=before[1],
            to=to,
            restored=request.restored.value,
            forced=request.forced,
            at_ms=host.environment.now_ms(),
        )
        await metadata.put(Put(restore_key(), records.encode(record), expected_version(found)))
        await _restorable(ledgers).take_identity(to)
    counts = await Reconciliation(host, _undecided(host, request), request.dry_run, progress).run()
    if not request.dry_run:
        await _restorable(metadata).take_identity(to)
        progress(f"both stores are {to} now")
    return RestoreReport(*before, to, counts)


async def _identity_to_take(host: Host, request: RestoreRequest, begun: records.RestoreRecord | None) -> str:
    """Return the identity that both stores take: that of an interrupted restore, or else a new one."""
    metadata, ledgers = host.metadata, host.ledgers
    # A restored metadata store may hold the record of an old restore, which is about other identities.
    if begun is not None and begun.to != metadata.identity and ledgers.identity in (begun.ledgers, begun.to):
        if begun.restored and (begun.restored, begun.forced) != (request.restored.value, request.forced):
            forced = ", forced" if begun.forced else ""
            raise InvalidInput(
                f"an earlier restore was interrupted, for which the {begun.restored} store was the older one{forced};"
                " repeat it with the same request, because its decisions must not change"
            )
        return begun.to
    if metadata.identity != ledgers.identity:
        if not request.forced:
            raise StoreMismatch(
                f"{redact_url(host.config.metadata.url)} is {metadata.identity!r}, but"
                f" {redact_url(host.config.ledger.url)} belongs to {ledgers.identity!r}: only stores that were created"
                " together can be restored"
            )
    elif request.forced:
        raise InvalidInput("these two stores were created together; to force them would abort committed transactions")
    else:
        await _require_older(host, request, begun)
    return f"restored-{host.environment.random_bits(IDENTITY_BITS):016x}"


async def _require_older(host: Host, request: RestoreRequest, begun: records.RestoreRecord | None) -> None:
    """
    Refuse a request that the stores contradict: committed messages would be aborted, or aborted messages would be read.
    """
    if request.restored is Restored.LEDGER:
        await require_ledgers_older(host)
        return
    taken_ms = request.taken_ms or 0
    if begun is not None and begun.to == host.metadata.identity and begun.at_ms >= taken_ms:
        raise InvalidInput("these stores were restored after that backup was taken; nothing is left to finish")
    await require_metadata_older(host, taken_ms)


def _restorable(store: IMetadataStore | ILedgerStore) -> IRestorable:
    if not IRestorable.providedBy(store):
        raise InvalidInput(f"the store {store.identity!r} cannot take a new identity; its plugin does not support it")
    return store


def _undecided(host: Host, request: RestoreRequest) -> UndecidedEntries | None:
    """Return the entries that are decided only by a header that says so; None: there are none."""
    if request.forced:
        return UndecidedEntries(after_ms=0, trust_headers=False)
    if request.restored is Restored.LEDGER or request.taken_ms is None:
        return None
    return UndecidedEntries(max(0, request.taken_ms - host.config.transactions.retention_ms // 2), trust_headers=True)
