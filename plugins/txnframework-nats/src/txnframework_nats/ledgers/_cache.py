"""Records that were read, so that a reader of the tail and a repeated read need no server."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from txnframework_nats.ledgers._records import StoredRecord

_OVERHEAD_BYTES = 256


class RecordCache:
    """The records that were used last, of all logs of a store, up to ``bytes_max`` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._records: OrderedDict[tuple[str, int], StoredRecord] = OrderedDict()
        self._numbers: dict[tuple[str, int], int] = {}

    def put(self, log: str, record: StoredRecord) -> None:
        """Remember a record, and forget the ones that were not used for longest."""
        self._drop(log, record.number)
        size = _size(record)
        if size > self._bytes_max // 2 or record.before < 0:
            return
        self._records[log, record.number] = record
        self._numbers[log, record.before] = record.number
        self._bytes += size
        while self._bytes > self._bytes_max:
            self._drop(*next(iter(self._records)))

    def put_data(self, log: str, record: StoredRecord, data: bytes) -> StoredRecord:
        """Remember a record with its data, which pieces hold; return it."""
        whole = msgspec.structs.replace(record, data=data)
        self.put(log, whole)
        return whole

    def at(self, log: str, number: int) -> StoredRecord | None:
        """Return the record whose message has this number, if it is remembered."""
        found = self._records.get((log, number))
        if found is not None:
            self._records.move_to_end((log, number))
        return found

    def after(self, log: str, number: int) -> StoredRecord | None:
        """Return the record directly behind the one with this number, if it is remembered."""
        following = self._numbers.get((log, number))
        return None if following is None else self.at(log, following)

    def _drop(self, log: str, number: int) -> None:
        record = self._records.pop((log, number), None)
        if record is not None:
            self._bytes -= _size(record)
            del self._numbers[log, record.before]


def _size(record: StoredRecord) -> int:
    return len(record.data) + _OVERHEAD_BYTES
