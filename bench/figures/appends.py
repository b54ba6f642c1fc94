"""Ledger appends compared with COPY, the fastest way to insert rows into PostgreSQL."""

from __future__ import annotations

from measurement import Found, Run, Target, interleaved, opened, timed

from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, ProducerSequence

VALUE = b"x" * 1024
ROWS = 500
TABLE = """
CREATE TABLE entries (
    place bigint PRIMARY KEY, messages_through bigint NOT NULL, appended_ms bigint NOT NULL, data bytea NOT NULL
);
ALTER TABLE entries ALTER COLUMN data SET STORAGE {storage};
"""


async def appends_over_copy(run: Run) -> list[Found]:
    """
    Entries per second of 1 KiB appended to a ledger, 500 a call, over rows per second of COPY, 500 a statement.

    The table of the raw side has the columns of the ledger's table. Every call and every COPY is committed. One figure
    appends plain entries, the other one entries with a producer's sequence, which the ledger compares with stored ones.
    """
    samples, found = run.size(20, 3), []
    async with run.backend.raw("raw") as (connection,), opened(run.backend.config("append")) as client:
        storage = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'entries'::regclass AND attname = 'data'"
        ((letter,),) = await run.backend.rows("append", storage)
        names = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}
        await connection.execute(TABLE.format(storage=names[letter.decode()]))
        rows = 0

        async def copy() -> None:
            nonlocal rows
            records = [(rows + number, rows + number + 1, 1_700_000_000_000, VALUE) for number in range(ROWS)]
            await connection.copy_records_to_table("entries", records=records)
            rows += ROWS

        for what, producer in (("", None), (", with a producer's sequences", "p")):
            ledger = await client.host.ledgers.create(f"bench-{producer}")
            ratios, ours, theirs = [], [], []
            appending = _Appending(ledger, producer)
            await appending.once()
            for number in range(run.rounds):
                run.progress(f"round {number + 1} of {run.rounds}{what}")
                took, raw_took = await interleaved(samples, lambda: timed(appending.once()), lambda: timed(copy()))  # noqa: B023
                ratios.append(sum(raw_took) / sum(took))
                ours.append(ROWS * samples / sum(took))
                theirs.append(ROWS * samples / sum(raw_took))
            notes = {"best_per_s": round(max(ours)), "best_raw_per_s": round(max(theirs))}
            title = f"entries of 1 KiB per second, {ROWS} a call{what} / COPY"
            found.append(Found(title, tuple(ratios), Target(0.3, at_most=False), notes))
    return found


class _Appending:
    """Append to one ledger, call after call."""

    def __init__(self, ledger: IManagedLedger, producer: str | None) -> None:
        self._ledger = ledger
        self._producer = producer
        self._sequence = 0

    async def once(self) -> None:
        first, self._sequence = self._sequence, self._sequence + ROWS
        entries = tuple(Append(VALUE, 1, sequence=self._claim(at)) for at in range(first, self._sequence))
        appended = await self._ledger.append(entries, (await self._ledger.tail()).open_ledger_id)
        assert not any(one.duplicate for one in appended)

    def _claim(self, at: int) -> ProducerSequence | None:
        return None if self._producer is None else ProducerSequence(self._producer, at, at)
