"""Whether the stores contradict what an operator says of them; asked before anything is changed."""

from __future__ import annotations

from txnframework.broker._host import Host
from txnframework.broker._serving.belonging import beyond_reserved
from txnframework.errors import InvalidInput
from txnframework.interfaces import IMetadataStore
from txnframework.model import index_keys, paths
from txnframework.model.entry_view import EntryView
from txnframework.model.ids import LOG_FAMILY, Branch
from txnframework.model.indexes import TXN_BY_FINAL_STATE
from txnframework.model.metadata import IndexRange
from txnframework.model.positions import EntryRange, Limit
from txnframework.model.transactions import State

_PAGE = Limit(500)
_OTHER_WAY = (
    "the metadata store is the older one; say so, with the time at which its backup was taken:"
    " --restored metadata --taken TIME"
)


async def require_metadata_older(host: Host, taken_ms: int) -> None:
    """
    Refuse a time of the backup after which the metadata store still knows of an end.

    Whatever was committed after that time, and has been forgotten since, would be aborted.

    :raises InvalidInput: it knows of such a transaction.
    """
    later_ms = taken_ms + host.config.transactions.retention_ms // 2
    for state in (State.COMMITTED, State.ABORTED):
        whole = index_keys.prefix_range(TXN_BY_FINAL_STATE, state.value)
        later = IndexRange(whole.index, index_keys.encode(state.value, later_ms), whole.stop)
        if (await host.metadata.scan_index(later, 1)).records:
            raise InvalidInput(
                "the metadata store knows of transactions that ended after that backup was taken: it is another one"
            )


async def require_ledgers_older(host: Host) -> None:
    """
    Refuse ledgers that hold what a newer metadata store would know of: what was aborted there would count.

    A newer one has reserved every number that stands in them. And it has a header or an abort record of whoever wrote
    there lately, because a header stays for ``transactions.retention_ms`` after the end; half of that is left for
    clocks. What was written longer ago says nothing, so a wrong answer may still go unnoticed.

    :raises InvalidInput: they hold such a number, or such an entry.
    """
    found = await beyond_reserved(host.metadata, host.ledgers)
    if found is not None:
        raise InvalidInput(
            f"the ledgers hold transaction number {found.number} of coordinator {found.coordinator}, of which the"
            f" metadata store has reserved numbers below {found.reserved} only: {_OTHER_WAY}"
        )
    since_ms = host.environment.now_ms() - host.config.transactions.retention_ms // 2
    after = ""
    while names := await host.ledgers.list_names("segment://", after, _PAGE.items):
        for name in names:
            await _require_known(host, name, since_ms)
        after = names[-1]


async def _require_known(host: Host, name: str, since_ms: int) -> None:
    """Refuse a segment that was written since then by a branch of which the metadata store knows nothing."""
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
                    f"{name} holds an entry at {entry.position} of transaction {branch.txn_id}, of which the metadata"
                    f" store knows nothing: {_OTHER_WAY}"
                )
            known.add((entry.position.ledger_id, branch))
        after = found[-1].position


async def _is_known(store: IMetadataStore, name: str, ledger_id: int, branch: Branch) -> bool:
    """Whether there is a header, or a record that says that the branch was aborted there."""
    if await store.get(paths.header_key(branch.txn_id)) is not None:
        return True
    return await store.get(paths.abort_record_key(name, ledger_id, branch.txn_id, branch.number)) is not None
