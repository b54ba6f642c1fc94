"""Rules of ILedgerStore: one refused part of a joint append refuses everything."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from txnframework.errors import LedgerNotFound, LedgerSealed, VersionMismatch
from txnframework.model import (
    Append,
    Applied,
    Check,
    Expect,
    IndexEntry,
    IndexRange,
    Intent,
    Key,
    ProducerSequence,
    Put,
    PutSequential,
    Step,
)
from txnframework.model.records import WriteOperation
from txnframework.testing._suites._ledger._case import read_all
from txnframework.testing._suites._ledger._joint_case import (
    ACKS,
    CALLS,
    CURSOR,
    HEADER,
    OLD,
    TAKEN,
    JointRules,
    joint,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Colocated


class JointRefusalRules(JointRules):
    """A store that refuses a whole step for any of its parts."""

    @requires(Colocated)
    async def test_a_sealed_ledger_refuses_everything(self) -> None:
        """If one ledger is sealed, nothing is written to any ledger, and no record."""
        async with self._ledgers_and_records() as opened:
            await opened.ledgers[1].seal()
            with pytest.raises(LedgerSealed):
                await opened.make(joint(opened.appends(Append(b"a")), opened.puts()))
            await opened.require_nothing_written()

    @requires(Colocated)
    async def test_a_deleted_ledger_refuses_everything(self) -> None:
        """A reference to a deleted ledger is refused, and does not name a ledger that is created under its name."""
        async with self._ledgers_and_records() as opened:
            deleted = opened.ledgers[1]
            await opened.store.delete(deleted.name, None)
            created = await opened.store.create(deleted.name)
            with pytest.raises(LedgerNotFound):
                await opened.make(joint(opened.appends(Append(b"a")), opened.puts()))
            assert await read_all(created) == []
            await opened.require_nothing_written()

    @requires(Colocated)
    async def test_one_record_refuses_everything(self) -> None:
        """If one record is not as expected, the error names it, and no entry and no record is written."""
        async with self._ledgers_and_records() as opened:
            with pytest.raises(VersionMismatch) as caught:
                await opened.make(joint(opened.appends(Append(b"a")), opened.puts(opened.cursor + 1)))
            assert (caught.value.key, caught.value.actual) == (CURSOR, opened.cursor)
            await opened.require_nothing_written()
            ended = await opened.records.put(Put(HEADER, b"aborted", Expect.ABSENT))
            with pytest.raises(VersionMismatch) as caught:
                await opened.make(joint(opened.appends(Append(b"a")), opened.puts()))
            assert (caught.value.key, caught.value.actual) == (HEADER, ended)
            assert [await read_all(ledger) for ledger in opened.ledgers] == [[]] * 3

    @requires(Colocated)
    async def test_requests_that_make_no_sense(self) -> None:
        """A ledger or a record in two places, and parts that are not for each other, are ValueErrors."""
        async with self._ledgers_and_records() as opened:
            appends = opened.appends(Append(b"a"))
            twice = Step(puts=(Put(HEADER, b"1", Expect.ANY), Put(HEADER, b"2", Expect.ANY)))
            first, *others = appends
            intended = [
                replace(first, intent=Intent(OLD, (), WriteOperation(branch=0, segment="s", ledger=0, after="")))
            ]
            sequence = Append(b"a", sequence=ProducerSequence("p", 1, 1))
            for request in (
                joint(appends + appends[:1]),
                joint(appends, twice),
                joint(appends, Step(puts=(PutSequential(OLD, b""),))),
                joint((*intended, *others), Step(checks=(Check(HEADER, Expect.ABSENT),))),
                joint(opened.appends(sequence)),
            ):
                with pytest.raises(ValueError):  # noqa: PT011 - the texts are the stores' own
                    await opened.make(request)
            await opened.require_nothing_written()

    @requires(Colocated)
    async def test_one_of_many_that_compete(self) -> None:
        """Of many concurrent steps that move one record from the same version, exactly one is applied."""
        async with self._ledgers_and_records() as opened:
            steps = [
                opened.make(
                    joint(opened.appends(Append(b"%d" % number)), Step(puts=(Put(CURSOR, b"moved", opened.cursor),)))
                )
                for number in range(CALLS)
            ]
            done = await asyncio.gather(*steps, return_exceptions=True)
            refused = [one for one in done if isinstance(one, BaseException)]
            assert {type(one) for one in refused} == {VersionMismatch}
            assert len(refused) == CALLS - 1
            assert [len(await read_all(ledger)) for ledger in opened.ledgers] == [1, 1, 1]

    @requires(Colocated)
    async def test_a_range_that_is_not_vacant(self) -> None:
        """A record with an entry in the range refuses everything, and the error names it; other entries do not."""
        async with self._ledgers_and_records() as opened:
            elsewhere = (IndexEntry("suite-acks", b"\xff"), IndexEntry("other", b"k"))
            await opened.records.put(Put(Key("/other"), b"", Expect.ABSENT, elsewhere))
            vacant = (IndexRange("suite-acks", b"a", b"k"), ACKS)
            request = joint(opened.appends(Append(b"a")), opened.puts(), vacant)
            for old in (OLD, Key("/without-partition")):
                taken = await opened.records.put(Put(old, b"ack", Expect.ABSENT, (TAKEN,)))
                with pytest.raises(VersionMismatch) as caught:
                    await opened.make(request)
                assert (caught.value.key, caught.value.actual) == (old, taken)
                await opened.require_nothing_written()
                await opened.records.delete(old, taken)
            await opened.make(request)
            assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"]] * 3

    @requires(Colocated)
    async def test_ranges_that_are_taken_in_a_race(self) -> None:
        """
        Of a step that requires a range to be vacant, and another one that puts an entry there, one finds the other.

        Both name the cursor: the first one moves it, and the other one checks it. If this fails, check that the range
        is looked at once the records are locked, by a statement that sees what was committed until then.
        """
        async with self._ledgers_and_records() as opened:
            version, applied = opened.cursor, 0
            for number in range(CALLS):
                ack = Key(f"/ack/{number}")
                put = Step((Check(CURSOR, Expect.ANY),), (Put(ack, b"", Expect.ABSENT, (TAKEN,)),))
                step = joint(
                    opened.appends(Append(b"%d" % number)), Step(puts=(Put(CURSOR, b"moved", version),)), (ACKS,)
                )

                async def put_then_look(put: Step = put, turns: int = number) -> int:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await opened.records.apply(put)
                    cursor = await opened.records.get(CURSOR)
                    assert cursor is not None
                    return cursor.version

                stepped = opened.make(step)
                seen, refused = await asyncio.gather(put_then_look(), stepped, return_exceptions=True)
                assert isinstance(seen, int), seen
                if isinstance(refused, Applied):
                    assert seen > version, "the other one looks after it is visible, and finds the step"
                    applied += 1
                else:
                    assert isinstance(refused, VersionMismatch), refused
                    assert (seen, refused.key) == (version, ack)
                version = seen
                await opened.records.delete(ack, Expect.ANY)
            assert [len(await read_all(ledger)) for ledger in opened.ledgers] == [applied] * 3
