"""Rules of ILedgerStore."""

from __future__ import annotations

import pytest

from txnframework.errors import Closed, LedgerNotFound, StoreMismatch
from txnframework.interfaces import ILedgerStore, IRestorable
from txnframework.model import Append
from txnframework.model.paths import compacted_ledger_name, escape
from txnframework.testing._suites._base import longest_name, longest_segment
from txnframework.testing._suites._ledger._case import (
    NAME,
    NONE,
    LedgerStoreRules,
    append,
    branch,
    read_all,
    send,
    sent,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Paired

AWKWARD_NAMES = (
    "a", "a/b", "a-2", "A", "a b", "ä", "\u6f22", "a%2Fb", "a:b", "segment://t/n/x/0000-ffff-0", "a~", "a.b", "a_b",
)  # fmt: skip


class StoreRules(LedgerStoreRules):
    """Managed ledgers by name."""

    async def test_create_opens_what_is_there(self) -> None:
        """Create makes an empty ledger, or opens the existing one with its entries, on any client."""
        async with self.data.open() as store, self.data.open() as other:
            await append(await store.create(NAME), b"a")
            assert await read_all(await store.create(NAME)) == [b"a"]
            assert await read_all(await other.create(NAME)) == [b"a"]
            assert await read_all(await other.open(NAME)) == [b"a"]

    async def test_open_what_is_absent(self) -> None:
        """Opening an absent ledger raises LedgerNotFound and creates none."""
        async with self.data.open() as store:
            for _ in range(2):
                with pytest.raises(LedgerNotFound) as caught:
                    await store.open(NAME)
                assert caught.value.name == NAME

    async def test_delete(self) -> None:
        """Delete removes the ledger, also for open handles; deleting again succeeds; other ledgers are unchanged."""
        async with self.data.open() as store:
            ledger, other = await store.create(NAME), await store.create("other")
            await append(other, b"o")
            await append(ledger, b"a")
            await store.delete(NAME, None)
            await store.delete(NAME, None)
            with pytest.raises(LedgerNotFound):
                await store.open(NAME)
            with pytest.raises((LedgerNotFound, Closed)):
                await append(ledger, b"b")
            assert await store.list_names("", "", 10) == ("other",)
            assert await read_all(other) == [b"o"]

    async def test_delete_up_to_a_ledger(self) -> None:
        """
        Delete with a ledger id keeps a ledger whose open id is higher, because it has rolled or was created again.

        If this fails, a process that pauses while it removes a deleted topic removes the next topic of that name.
        """
        async with self.data.open() as store:
            former = await store.create(NAME)
            await append(former, b"a")
            first = (await former.tail()).open_ledger_id
            rolled = (await former.roll()).open_ledger_id
            await store.delete(NAME, first)
            assert await store.list_names("", "", 10) == (NAME,)
            assert await read_all(await store.open(NAME)) == [b"a"]
            await store.delete(NAME, rolled)
            with pytest.raises(LedgerNotFound):
                await store.open(NAME)
            await store.delete(NAME, rolled)
            await append(await store.create(NAME), b"b")
            await store.delete(NAME, rolled)
            assert await read_all(await store.open(NAME)) == [b"b"]
            with pytest.raises((LedgerNotFound, Closed)):
                await former.tail()
            await store.delete(NAME, (await (await store.open(NAME)).tail()).open_ledger_id)
            assert await store.list_names("", "", 10) == ()

    async def test_what_is_open_of_a_deleted_ledger_stays_what_it_was(self) -> None:
        """
        A handle of a deleted ledger stays invalid after the name is created again, and changes nothing of the new one.

        If this fails, a process that was paused while it removed a topic seals the next topic of that name.
        """
        async with self.data.open() as store, self.data.open() as other:
            handles = [await store.create(NAME), await other.open(NAME)]
            await append(handles[0], b"a")
            await store.delete(NAME, None)
            remade = await store.create(NAME)
            await append(remade, b"b")
            for former in handles:
                for use in (former.seal, former.roll, former.tail, lambda former=former: append(former, b"c")):
                    with pytest.raises((LedgerNotFound, Closed)):
                        await use()
            assert not (await remade.tail()).sealed
            assert await read_all(remade) == [b"b"]

    async def test_ids_do_not_return(self) -> None:
        """
        A ledger that is created again under a deleted name is empty and reuses no earlier ledger id.

        If this fails, a cursor of the deleted ledger points into the middle of the new one.
        """
        seen: set[int] = set()
        for _ in range(3):
            async with self.data.open() as store:
                ledger = await store.create(NAME)
                assert await read_all(ledger) == []
                for data in (b"a", b"b"):
                    (position,) = await append(ledger, data)
                    assert position.ledger_id not in seen
                    await ledger.roll()
                    seen.add(position.ledger_id)
                seen.add((await ledger.tail()).open_ledger_id)
                await store.delete(NAME, None)

    async def test_longest_names(self) -> None:
        """
        Ledgers and producers with the longest names work like any others.

        If this fails, check the store's limits for the length of a key and of an index row.
        """
        one, other = longest_segment(1), longest_segment(2)
        beside = [f"suite:{escape(one)}/1/{escape(longest_name(number))}" for number in (3, 4)]
        names = [one, other, *beside, compacted_ledger_name(one, 1, "part")]
        producers = [longest_name(5), longest_name(5)[:-1] + "b"]
        async with self.data.open() as store:
            for name in names:
                for producer in producers:
                    (appended,) = await send(await store.create(name), sent(producer, 7))
                    assert not appended.duplicate
        async with self.data.open() as again:
            assert await again.list_names("", "", 100) == tuple(sorted(names))
            assert await again.list_names(f"suite:{escape(one)}/", beside[0], 100) == (max(beside),)
            for name in names:
                ledger = await again.open(name)
                assert len(await read_all(ledger)) == len(producers)
                (repeated,) = await send(ledger, sent(producers[0], 7))
                assert repeated.duplicate
                await again.delete(name, None)
            assert await again.list_names("", "", 100) == ()

    async def test_list_names(self) -> None:
        """Names are listed in order, in pages that continue after a name; the prefix is text, not a pattern."""
        async with self.data.open() as store:
            for name in AWKWARD_NAMES:
                await store.create(name)
            assert await store.list_names("", "", 100) == tuple(sorted(AWKWARD_NAMES))
            assert await store.list_names("a", "", 100) == tuple(sorted(n for n in AWKWARD_NAMES if n.startswith("a")))
            assert await store.list_names("a_", "", 100) == ("a_b",)
            assert await store.list_names("a%", "", 100) == ("a%2Fb",)
            assert await store.list_names("none", "", 100) == ()
            listed: list[str] = []
            while page := await store.list_names("", listed[-1] if listed else "", 2):
                assert len(page) <= 2
                listed += page
            assert listed == sorted(AWKWARD_NAMES)
            assert await store.list_names("a", "a-2", 1) == ("a.b",)

    async def test_ledgers_are_independent(self) -> None:
        """Ledgers with similar names share no entries, sequences or seals."""
        async with self.data.open() as store:
            for name in AWKWARD_NAMES:
                await append(await store.create(name), name.encode())
            await (await store.open("a")).seal()
            for name in AWKWARD_NAMES:
                ledger = await store.open(name)
                assert await read_all(ledger) == [name.encode()]
                assert (await ledger.tail()).sealed == (name == "a")

    async def test_highest_txn_numbers(self) -> None:
        """
        The highest appended transaction number per coordinator is kept after a trim, a delete and a restart.

        If this fails, a metadata store that was restored from a backup is not detected, and assigns ids again.
        """
        async with self.data.open() as store:
            assert await store.highest_txn_numbers() == {}
            ledger = await store.create(NAME)
            large = 2**100 + 5
            for txn, coordinator in ((5, 1), (9, 1), (7, 1), (large, 2), (3, 0x8001)):
                await send(ledger, Append(b"", branch=branch(0, txn, coordinator)))
            await append(ledger, b"plain")
            expected = {1: 9, 2: large, 0x8001: 3}
            assert await store.highest_txn_numbers() == expected
            await ledger.roll()
            await ledger.trim((await ledger.tail()).open_ledger_id, NONE)
            assert await store.highest_txn_numbers() == expected
            await store.delete(NAME, None)
        async with self.data.open() as store:
            assert await store.highest_txn_numbers() == expected

    async def test_identity(self) -> None:
        """The identity is that of the metadata store that it belongs to, the same at each opening."""
        async with self.data.open() as store:
            identity = store.identity
            assert identity
        async with self.data.open() as store:
            assert store.identity == identity

    @requires(Paired)
    async def test_another_identity_is_refused(self) -> None:
        """Opening with another metadata store's identity raises StoreMismatch and changes nothing."""
        harness = self.data
        assert isinstance(harness, Paired)
        async with harness.open() as store:
            own = store.identity
            await append(await store.create(NAME), b"a")
        with pytest.raises(StoreMismatch):
            await opened(harness, f"not-{own}")
        async with harness.open_as(own) as store:
            assert store.identity == own
            assert await read_all(await store.open(NAME)) == [b"a"]

    @requires(Paired, IRestorable)
    async def test_taking_an_identity(self) -> None:
        """After a store takes an identity, it opens only for that metadata store, and no longer for the earlier one."""
        harness = self.data
        assert isinstance(harness, Paired)
        async with harness.open() as store:
            before = store.identity
            await append(await store.create(NAME), b"a")
            assert IRestorable.providedBy(store)
            for _ in range(2):
                await store.take_identity("restored-1")
                assert store.identity == "restored-1"
        with pytest.raises(StoreMismatch):
            await opened(harness, before)
        async with harness.open_as("restored-1") as store:
            assert store.identity == "restored-1"
            assert await read_all(await store.open(NAME)) == [b"a"]


async def opened(harness: Paired[ILedgerStore], identity: str) -> None:
    """Open and close a client."""
    async with harness.open_as(identity):
        pass
