"""The ids of transactions, and what is reserved when the coordinators of a host change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from zope.interface import implementer

from txnframework.interfaces import ICoordinatorShare
from txnframework.model import Expect, Key, Put, Record
from txnframework.model.ids import TxnID
from txnframework.plugin import CoordinatorContext, SharedTransactionIds

BLOCK = 2


class Store:
    """Records without rules, which counts its writes."""

    def __init__(self) -> None:
        self.writes = 0
        self._records: dict[Key, Record] = {}

    async def get(self, key: Key) -> Record | None:
        """Return a record."""
        return self._records.get(key)

    async def put(self, write: Put) -> int:
        """Write a record."""
        self.writes += 1
        assert (write.expected == Expect.ABSENT) == (write.key not in self._records)
        self._records[write.key] = Record(write.key, write.value, self.writes)
        return self.writes


@implementer(ICoordinatorShare)
class Share:
    """The coordinators that a host holds."""

    ids = (1, 2)

    def __init__(self) -> None:
        self.now = frozenset({1})

    async def held(self) -> frozenset[int]:
        """Return them."""
        return self.now

    async def changed(self, known: frozenset[int]) -> frozenset[int]:
        """Return them."""
        assert known != self.now
        return self.now


async def test_ids_of_an_earlier_share() -> None:
    """Ids that were kept ready are used without a write after the coordinators changed; then those of the new ones."""
    store, share = Store(), Share()
    environment = SimpleNamespace(random_bits=lambda _: 0)
    context = cast(CoordinatorContext, SimpleNamespace(store=store, environment=environment))
    ids = SharedTransactionIds(context, share, BLOCK, 1)
    await ids.keep_ready(1)
    share.now = frozenset({2})
    writes = store.writes
    assert [await ids.next_id() for _ in range(BLOCK)] == [TxnID(1, 1), TxnID(1, 2)]
    assert store.writes == writes
    assert await ids.next_id() == TxnID(2, 1)


async def test_ids_of_the_present_share() -> None:
    """Without a wish to keep ids ready, each id is of a coordinator that the host holds."""
    store, share = Store(), Share()
    environment = SimpleNamespace(random_bits=lambda _: 0)
    context = cast(CoordinatorContext, SimpleNamespace(store=store, environment=environment))
    ids = SharedTransactionIds(context, share, BLOCK, 1)
    assert await ids.next_id() == TxnID(1, 1)
    share.now = frozenset({2})
    assert await ids.next_id() == TxnID(2, 1)
