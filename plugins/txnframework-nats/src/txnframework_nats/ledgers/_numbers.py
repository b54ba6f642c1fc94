"""The highest transaction numbers of the entries in one stream; they outlive the ledgers."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.errors import Corrupt, Unavailable
from txnframework.model import Branch
from txnframework_nats.ledgers._records import frame, unframe
from txnframework_nats.ledgers._requests import Draft, Refusal, Requests, Unanswered
from txnframework_nats.ledgers._shard import Shard

_CLEANED_EVERY = 256
_PAGE = 1_000
_PAGE_BYTES = 1024 * 1024


class TransactionNumbers:
    """
    Notes of transaction numbers. The highest note of a coordinator counts, whichever was stored last.

    An entry is confirmed when its note is stored too. Both are sent on one connection to one stream, the note first.
    Crash window: a leader that refuses the note may be followed by one that stores the entry, and then the writer may
    die. So the number of an entry can be missing, but of none that was confirmed.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._noted: dict[int, int] = {}
        self._notes = 0

    def beyond(self, branches: Iterable[Branch]) -> dict[int, int]:
        """Return the highest number of each coordinator that this process has not noted yet."""
        highest: dict[int, int] = {}
        for branch in branches:
            txn_id = branch.txn_id
            if txn_id.number > max(self._noted.get(txn_id.coordinator, -1), highest.get(txn_id.coordinator, -1)):
                highest[txn_id.coordinator] = txn_id.number
        return highest

    async def note(self, numbers: dict[int, int]) -> None:
        """
        Store notes of these numbers.

        :raises Unavailable: they were perhaps not stored; noting them again does no harm.
        """
        for coordinator, number in sorted(numbers.items()):
            await self._store(Draft(self._shard.numbers(coordinator), frame(number.to_bytes(14, "big"))))
            self._noted[coordinator] = max(number, self._noted.get(coordinator, -1))
            self._notes += 1

    async def _store(self, draft: Draft) -> None:
        requests = self._shard.requests
        attempts = requests.attempts()
        while True:
            try:
                stored = await requests.store([draft])
            except Unanswered as error:
                reason = str(error)
            else:
                if not isinstance(stored, Refusal):
                    return
                reason = stored.reason
            if attempts.are_over:
                raise Unavailable(f"a transaction number was not noted: {reason}")
            await attempts.pause()

    async def highest(self) -> dict[int, int]:
        """Return the highest number of each coordinator, with everything that was confirmed before the call."""
        found, _ = await self._read()
        return {coordinator: number for coordinator, (number, _) in found.items()}

    async def clean(self) -> None:
        """Remove notes below the highest ones, once this process has made many."""
        if self._notes < _CLEANED_EVERY:
            return
        self._notes = 0
        found, _ = await self._read()
        for coordinator, (_, message) in found.items():
            # The highest note stays, and what came later.
            await self._shard.requests.purge(self._shard.stream, self._shard.numbers(coordinator), message)

    async def _read(self) -> tuple[dict[int, tuple[int, int]], int]:
        """Return the highest number of each coordinator with the message that holds it; and the last message."""
        requests: Requests = self._shard.requests
        stream, filtered = self._shard.stream, self._shard.numbers(None)
        highest: dict[int, tuple[int, int]] = {}
        last = 0
        while True:
            messages = await requests.some(stream, filtered, last + 1, _PAGE, _PAGE_BYTES)
            if not messages:
                at_leader = await requests.next_at_leader(stream, filtered, last + 1)
                if at_leader is None:
                    return highest, last
                messages = [at_leader]
            for message in messages:
                body = unframe(message.data, f"a transaction number in stream {stream}")
                token = message.subject.rpartition(".")[2]
                if not token.isdecimal():
                    raise Corrupt(f"stream {stream} has a transaction number of coordinator {token!r}")
                number = int.from_bytes(body, "big")
                if number >= highest.get(int(token), (-1, 0))[0]:
                    highest[int(token)] = (number, message.number)
            last = messages[-1].number
