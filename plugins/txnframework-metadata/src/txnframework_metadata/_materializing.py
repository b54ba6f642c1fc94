"""Making the outcomes of writes durable in one segment, and removing what nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model.ids import Branch
from txnframework.model.metadata import Expect, Put
from txnframework.model.paths import abort_record_key, abort_records_range
from txnframework.model.positions import Position
from txnframework.model.records import AbortRecord, WriteOperation, encode
from txnframework.model.transactions import State, Swept, Transaction
from txnframework_metadata._operations import forget, scan_operations
from txnframework_metadata._options import BufferOptions


async def settle_writes(store: IMetadataStore, segment: str, ended: Transaction, page_records: int) -> None:
    """
    Forget a transaction's write operations on ``segment``; before that, record the branches that do not count.

    The order closes a crash window: an operation that is deleted before its abort record stands leaves entries of which
    nothing is known, and those count as committed once the header is collected.
    """
    if ended.state not in (State.COMMITTED, State.ABORTED):
        raise ValueError(f"transaction {ended.txn_id} is {ended.state.value}, only an ended one can be settled")
    mine = []
    bounds: dict[tuple[int, int], Position] = {}
    for operation in await scan_operations(store, ended.txn_id, page_records):
        document = operation.document
        if not isinstance(document, WriteOperation) or document.segment != segment:
            continue
        mine.append(operation)
        if not ended.counts(document.branch):
            place, after = (document.ledger, document.branch), Position.parse(document.after)
            bounds[place] = min(after, bounds.get(place, after))
    for (ledger_id, branch), after in bounds.items():
        key = abort_record_key(segment, ledger_id, ended.txn_id, branch)
        await store.put(Put(key, encode(AbortRecord(after=str(after))), Expect.ANY))
    await forget(store, mine)


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """At ``at_ms`` this process saw that ``first`` is the first ledger that is left."""

    at_ms: int
    first: int


class Trimming:
    """
    Trims ledgers, and the abort records of ledgers that were trimmed ``abort_retention_ms`` ago.

    Nobody records when a ledger was trimmed; each process counts from when it saw it, which is never sooner.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        store: IMetadataStore,
        environment: Environment,
        abort_retention_ms: int,
        options: BufferOptions,
    ) -> None:
        self._segment = segment
        self._ledger = ledger
        self._store = store
        self._environment = environment
        self._abort_retention_ms = abort_retention_ms
        self._options = options
        self._seen: list[_Trimmed] = []

    @property
    def first_seen(self) -> int:
        """The first ledger that was left when this process last trimmed; before that the lowest there can be."""
        return self._seen[-1].first if self._seen else 0

    async def trim(self, below_ledger_id: int, aborted: frozenset[Branch]) -> tuple[Swept, int]:
        """
        Trim below a ledger, where everything is decided and ``aborted`` are the branches that do not count.

        Return what was done and the first ledger left.
        """
        first = await self._ledger.trim(below_ledger_id, aborted)
        now_ms = self._environment.now_ms()
        if not self._seen or self._seen[-1].first < first:
            self._seen.append(_Trimmed(now_ms, first))
        old = [trimmed for trimmed in self._seen if trimmed.at_ms + self._abort_retention_ms <= now_ms]
        done = left = 0
        if old:
            # The newest of them stands for the older ones.
            self._seen = self._seen[len(old) - 1 :]
            done, left = await self._collect(old[-1].first)
        waiting = [trimmed.at_ms + self._abort_retention_ms for trimmed in self._seen if trimmed not in old]
        next_ms = now_ms if left else min(waiting, default=None)
        return Swept(done, left, next_ms), first

    async def _collect(self, below_ledger_id: int) -> tuple[int, int]:
        """Delete a page of abort records of ledgers before this one; return how many, and whether there are more."""
        page = await self._store.scan(
            abort_records_range(self._segment, 0, below_ledger_id), self._options.page_records
        )
        for record in page.records:
            await self._store.delete(record.key, Expect.ANY)
        return len(page.records), int(page.resume is not None)
