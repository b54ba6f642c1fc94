"""The snapshots of one log on the servers: the state of its beginning, in as many messages as it needs."""

from __future__ import annotations

from txnframework.errors import Unavailable
from txnframework_nats.ledgers._records import frame, unframe
from txnframework_nats.ledgers._requests import Draft, Refusal, Requests, StoredMessage, Unanswered
from txnframework_nats.ledgers._snapshots import decode_state, encode_state
from txnframework_nats.ledgers._state import LedgerState

_PIECES_MAX = 1_000
_PIECE_HEAD = 8


class SnapshotSubject:
    """The subject of a log's snapshots. ``number``: the last record that the last known snapshot covers."""

    def __init__(self, requests: Requests, stream: str, subject: str, name: str, window: int) -> None:
        self.number = 0
        self._requests = requests
        self._stream = stream
        self._subject = subject
        self._what = f"the snapshot of {name}"
        self._name = name
        self._window = window
        self._message = 0

    async def load(self) -> LedgerState:
        """Return the state of the last snapshot; an empty state without one."""
        state, self._message = await self._read()
        self.number = state.number
        return state

    async def store(self, state: LedgerState) -> bool:
        """
        Store the state, unless a snapshot covers it already, and remove the earlier snapshot; return whether it is new.

        :raises Unavailable: it was perhaps not stored.
        """
        encoded, covered = encode_state(state), state.number
        if covered <= self.number:
            return False
        size = self._requests.message_bytes - _PIECE_HEAD
        pieces = [encoded[at : at + size] for at in range(0, len(encoded), size)]
        if len(pieces) > _PIECES_MAX:
            return False
        drafts = [
            Draft(
                self._subject,
                frame(index.to_bytes(2, "big") + len(pieces).to_bytes(2, "big") + piece),
                # Only over the snapshot that this process knows: another process may have stored a later one.
                None if index else self._message,
            )
            for index, piece in enumerate(pieces)
        ]
        try:
            stored = await self._requests.store(drafts)
        except Unanswered as error:
            raise Unavailable(f"{self._what} was not stored: {error}") from error
        if isinstance(stored, Refusal):
            await self.load()
            return False
        self._message, self.number = stored, covered
        await self._requests.purge(self._stream, self._subject, stored - len(pieces) + 1)
        return True

    async def _read(self) -> tuple[LedgerState, int]:
        """Return the state of the last snapshot and the number of its last message."""
        while True:
            last = await self._requests.last_at_leader(self._stream, self._subject)
            if last is None:
                return LedgerState(self._window), 0
            total = int.from_bytes(unframe(last.data, self._what)[2:4], "big")
            messages: list[StoredMessage] = [last]
            while len(messages) < total:
                number = last.number - total + len(messages)
                found = await self._requests.next_at_leader(self._stream, self._subject, number)
                if found is None or found.number >= last.number:
                    break  # It was replaced and removed in the meantime.
                messages.insert(len(messages) - 1, found)
            bodies = [unframe(message.data, self._what) for message in messages]
            if [int.from_bytes(body[:2], "big") for body in bodies] == list(range(total)):
                encoded = b"".join(body[4:] for body in bodies)
                return decode_state(encoded, self._window, self._name), last.number
