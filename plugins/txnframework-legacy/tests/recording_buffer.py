"""A buffer for tests of the other roles: it appends, and remembers for all processes how transactions ended."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.interfaces import ITransactionBuffer
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Branch,
    EntryPage,
    Expect,
    Key,
    Participant,
    Position,
    Put,
    ReadRequest,
    State,
    Swept,
    Transaction,
    Visibility,
)
from txnframework.plugin import SegmentContext


@implementer(ITransactionBuffer)
class RecordingBuffer:
    """Shows nothing to readers; ``resolve`` tells what ``settle`` was told, in whichever process."""

    def __init__(self, context: SegmentContext) -> None:
        self.segment: str = context.segment
        self._context = context

    async def recover(self) -> Position:
        return EARLIEST

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        branch = entries[0].branch
        if branch is not None:
            await self._context.coordinator.enlist(branch.txn_id, frozenset({Participant(self.segment)}))
        return await self._context.ledger.append(entries, (await self._context.ledger.tail()).open_ledger_id)

    async def read(self, request: ReadRequest) -> EntryPage:
        return EntryPage((), request.after)

    async def max_read_position(self) -> Position:
        return (await self._context.ledger.tail()).last_confirmed

    async def advanced(self, beyond: Position) -> Position:
        return beyond

    async def finished(self, at: Position) -> bool:
        return False

    async def resolve(self, branch: Branch) -> Visibility:
        record = await self._context.store.get(self._key(branch))
        if record is None:
            return Visibility.OPEN
        return Visibility.COMMITTED if State(record.value.decode()) is State.COMMITTED else Visibility.ABORTED

    async def settle(self, ended: Transaction) -> None:
        value = ended.state.value.encode()
        await self._context.store.put(Put(self._key(Branch(ended.txn_id)), value, Expect.ANY))

    async def trim(self, ledger_id: int) -> Swept:
        return Swept(0, 0)

    async def close(self) -> None:
        return

    def _key(self, branch: Branch) -> Key:
        return Key(f"/test-outcome/{branch.txn_id}")


async def open_recording(context: SegmentContext) -> ITransactionBuffer:
    return RecordingBuffer(context)
