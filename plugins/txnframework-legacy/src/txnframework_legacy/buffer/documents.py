"""
Documents in ledgers: JSON, cut into parts so that no entry is larger than the configured size.

Each part is a plain entry of a log that begins with ``[format 2 bytes][part 2 bytes][parts 2 bytes]``, big-endian. The
parts of one document are appended by one call, so they are consecutive entries of one ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from txnframework.errors import CorruptEntry, EntryTrimmed, InvalidInput, LedgerNotFound, UnknownFormat
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Append, EntryRange, LedgerEntry, Limit, Position
from txnframework.model.records import UNREADABLE
from txnframework_legacy.log.format import decode_entry, encode_plain

FORMAT = 1
PAGE = Limit(100)
MARKER_OPTION = "buffers.marker.snapshot_entry_bytes_max"
_PART = struct.Struct(">HHH")
_PARTS_MAX = 0xFFFF

D = TypeVar("D", bound=msgspec.Struct)


class DocumentLedger(Generic[D]):
    """
    Successive versions of one document in a ledger, written by all processes; the last one counts.

    Older versions are trimmed. ``option`` is the option of the size limit, for error messages.
    """

    def __init__(
        self, ledgers: ILedgerStore, name: str, kind: type[D], entry_bytes_max: int, option: str = MARKER_OPTION
    ) -> None:
        self.name = name
        self._ledgers = ledgers
        self._kind = kind
        self._entry_bytes_max = entry_bytes_max
        self._option = option
        self._ledger: IManagedLedger | None = None

    @property
    def exists(self) -> bool:
        """Whether this process has opened or created the ledger."""
        return self._ledger is not None

    async def last(self) -> tuple[D, Position] | None:
        """Return the last document and the position of its last entry; None if there is none."""
        try:
            self._ledger = self._ledger or await self._ledgers.open(self.name)
        except LedgerNotFound:
            return None
        while True:
            last = (await self._ledger.tail()).last_confirmed
            if last.entry_id < 0:
                return None
            try:
                entries = await read_document(self._ledger, last)
            except EntryTrimmed:
                continue  # another process has written a newer one and trimmed this one
            return (decode_document(entries, self.name, self._kind), last) if entries else None

    async def write(self, document: D) -> None:
        """Write a document and trim the older ones."""
        entries = tuple(map(Append, encode(document, self._entry_bytes_max, self._option)))
        self._ledger = self._ledger or await self._ledgers.create(self.name)
        await self._ledger.roll()
        appended = await self._ledger.append(entries, None)
        await self._ledger.trim(appended[0].position.ledger_id, frozenset())

    async def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            await self._ledger.close()


async def read_document(ledger: IManagedLedger, last: Position) -> list[LedgerEntry]:
    """
    Return the entries of the document whose last entry is at ``last``; an empty list if no entry is stored there.

    :raises EntryTrimmed: the document was trimmed.
    """
    before = Position(last.ledger_id, last.entry_id - 1)
    found = await ledger.read(EntryRange(before, last), Limit(1))
    if not found:
        return []
    after = Position(last.ledger_id, last.entry_id - _part_count(found[0], ledger.name))
    entries: list[LedgerEntry] = []
    while after < before:
        page = await ledger.read(EntryRange(after, before), PAGE)
        if not page:
            break
        entries += page
        after = page[-1].position
    return [*entries, found[0]]


def encode(document: msgspec.Struct, entry_bytes_max: int, option: str = MARKER_OPTION) -> list[bytes]:
    """
    Return the entries that hold a document; each stores the number of parts.

    :raises InvalidInput: the document needs too many entries; ``option`` is the option of the size limit.
    """
    data = msgspec.json.encode(document)
    part_bytes = max(1, entry_bytes_max - len(encode_plain(b"")) - _PART.size)
    pieces = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    if len(pieces) > _PARTS_MAX:
        raise InvalidInput(
            f"a snapshot of {len(data)} bytes does not fit into {_PARTS_MAX} entries of {entry_bytes_max} bytes;"
            f" raise {option}"
        )
    return [encode_plain(_PART.pack(FORMAT, part, len(pieces)) + piece) for part, piece in enumerate(pieces)]


def decode_document(entries: Sequence[LedgerEntry], name: str, kind: type[D]) -> D:
    """Return the document that these entries hold."""
    data = b""
    for number, entry in enumerate(entries):
        (part, parts), piece = _piece_of(entry, name)
        if (part, parts) != (number, len(entries)):
            reason = f"part {part} of {parts} found; expected part {number} of {len(entries)}"
            raise CorruptEntry(entry.position, reason, name)
        data += piece
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise CorruptEntry(entries[-1].position, f"not a snapshot: {error}", name) from error


def _part_count(last: LedgerEntry, name: str) -> int:
    """Return the number of entries of the document that ends with this one."""
    (part, parts), _ = _piece_of(last, name)
    if part != parts - 1:
        raise CorruptEntry(last.position, f"it is part {part} of {parts}, and no entry follows it", name)
    return parts


def _piece_of(entry: LedgerEntry, name: str) -> tuple[tuple[int, int], bytes]:
    (data,) = decode_entry(entry, name)
    if len(data) < _PART.size:
        raise CorruptEntry(entry.position, f"{len(data)} bytes are too few for a part of a snapshot", name)
    version, part, parts = _PART.unpack_from(data)
    if version != FORMAT:
        raise UnknownFormat(f"entry {entry.position} of {name}", version)
    return (part, parts), data[_PART.size :]
