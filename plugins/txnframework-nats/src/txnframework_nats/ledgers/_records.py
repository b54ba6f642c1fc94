"""
The records of a ledger's log, and their encoding.

A message of the log is: one byte with the format, four bytes with a checksum of the rest, four bytes with the length of
the description, the description (MessagePack), and the data of the entries, unless pieces before the message hold it.
"""

from __future__ import annotations

import zlib

import msgspec

from txnframework.errors import Corrupt, UnknownFormat
from txnframework.model import Branch, TxnID

FORMAT = 2
"""The format of what the ledgers store in a stream."""

FORGETTING_FORMAT = 3
"""The format of ``Forgotten``, which earlier releases do not know."""

_FRAME_HEAD = 5


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """
    What one entry of a record carries besides its data: the branch, and the sequences of a producer.

    ``entry``: which one of the record. ``txn`` is empty without a branch; ``producer`` is -1 without sequences,
    otherwise a number into ``Added.producers``.
    """

    entry: int
    txn: str = ""
    branch: int = 0
    producer: int = -1
    first: int = 0
    last: int = 0


class Added(msgspec.Struct, frozen=True, array_like=True, tag="added", gc=False):
    """
    Entries were appended to the open ledger.

    ``first``: the id of the first one. ``messages_before``: the messages of the ledger before it. ``sizes``: the bytes
    of each entry. ``messages``: of each entry; empty if each has one. ``pieces``: the number of messages before this
    one that hold the data; 0: it follows the description. ``closes``: the ledger is closed, and the next one is open.

    Only in a ledger that is imported: ``into`` is its id (0: the open one), and ``times`` are those of the entries, of
    which ``appended_ms`` is the first; empty if all have this one.
    """

    token: bytes
    first: int
    messages_before: int
    appended_ms: int
    sizes: tuple[int, ...]
    messages: tuple[int, ...] = ()
    producers: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    pieces: int = 0
    closes: bool = False
    into: int = 0
    times: tuple[int, ...] = ()

    def messages_of(self, entry: int) -> int:
        """Return the number of messages of one of the entries."""
        return self.messages[entry] if self.messages else 1

    def time_of(self, entry: int) -> int:
        """Return when one of the entries was appended, in milliseconds since 1970."""
        return self.times[entry] if self.times else self.appended_ms

    @property
    def last_ms(self) -> int:
        """When the last entry was appended."""
        return self.times[-1] if self.times else self.appended_ms

    @property
    def messages_total(self) -> int:
        """The number of messages of all entries."""
        return sum(self.messages) if self.messages else len(self.sizes)


class Numbering(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """
    How a log numbers its ledgers: the id of a ledger is ``base + stride * number of the message that opens it``.

    ``stride`` is the number of streams, and ``base`` ends with the number of the stream. So ids differ in all ledgers
    of an installation, and are above those of another installation whose ledgers were imported. Numbers of messages
    grow: a name that is created again has higher ids.
    """

    base: int
    stride: int

    def ledger_id(self, number: int) -> int:
        """Return the id of the ledger that a message opens."""
        return self.base + self.stride * number


class Created(msgspec.Struct, frozen=True, array_like=True, tag="created", gc=False):
    """The first record of a log; it opens the first ledger."""

    token: bytes
    name: str
    numbering: Numbering


class ImportedLedger(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ledger of another store: its id, how many entries follow, and the time of its last one."""

    ledger_id: int
    entries: int
    appended_ms: int


class Imported(msgspec.Struct, frozen=True, array_like=True, tag="imported", gc=False):
    """
    The first record of a log that continues a managed ledger of another store; records of the entries follow.

    ``ledgers``: those that are left, the open one last. ``trimmed``: the first entry ever, and the last one that was
    trimmed, as ledger id and entry id each; None: none was.
    """

    token: bytes
    name: str
    numbering: Numbering
    ledgers: tuple[ImportedLedger, ...]
    sealed: bool
    trimmed: tuple[int, int, int, int] | None


class RememberedCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of sequences in another store's window; ``producer``: a number into ``Remembered.producers``."""

    producer: int
    first: int
    last: int
    ledger_id: int
    entry_id: int
    txn: str
    branch: int
    appended_ms: int


class Remembered(msgspec.Struct, frozen=True, array_like=True, tag="remembered", gc=False):
    """Copies were imported into the windows of producers."""

    token: bytes
    producers: tuple[str, ...]
    copies: tuple[RememberedCopy, ...]


class Rolled(msgspec.Struct, frozen=True, array_like=True, tag="rolled", gc=False):
    """The open ledger was closed, and this record opens the next one."""

    token: bytes


class Sealed(msgspec.Struct, frozen=True, array_like=True, tag="sealed", gc=False):
    """Appends are refused from here on."""

    token: bytes


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    """
    Copies of aborted branches in ledgers below ``below`` are forgotten; the ledgers themselves are removed later.

    A trim stores this first if it has more of them than one message may name.
    """

    token: bytes
    below: int
    aborted: tuple[tuple[str, int], ...]


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag="trimmed", gc=False):
    """
    The closed ledgers below ``below`` were removed.

    ``aborted``: the branches, each with its transaction, whose copies in them are forgotten; the other copies there
    count. ``silent``: producers that are forgotten because they appended nothing for long.
    """

    token: bytes
    below: int
    aborted: tuple[tuple[str, int], ...] = ()
    silent: tuple[str, ...] = ()


class Deleted(msgspec.Struct, frozen=True, array_like=True, tag="deleted", gc=False):
    """The managed ledger was deleted; this is the last record of its log."""

    token: bytes


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="asked", gc=False):
    """
    A process whose records were refused again and again asks the others to wait for ``hold_ms``; changes nothing.

    This is the only record that is stored wherever the log ends. So it has no expectation.
    """

    token: bytes
    hold_ms: int


LogRecord = Asked | Created | Imported | Added | Remembered | Rolled | Sealed | Forgotten | Trimmed | Deleted


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """
    A record as it was read.

    ``number``: of its message. ``before``: of the record before it; -1 of one that is stored wherever the log ends.
    ``data``: what is behind the description.
    """

    number: int
    before: int
    content: LogRecord
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[LogRecord] = msgspec.msgpack.Decoder(LogRecord)


def encode(content: LogRecord, data: bytes = b"") -> bytes:
    """Return the message of a record."""
    described = _encoder.encode(content)
    stored_format = FORGETTING_FORMAT if isinstance(content, Forgotten) else FORMAT
    return frame(len(described).to_bytes(4, "big") + described + data, stored_format)


def decode(number: int, before: int, message: bytes, name: str) -> StoredRecord:
    """
    Return the record of a message.

    :raises UnknownFormat: another version has written it.
    :raises Corrupt: it is damaged.
    """
    body = unframe(message, f"message {number} of the log of {name}")
    size = int.from_bytes(body[:4], "big")
    try:
        content = _decoder.decode(body[4 : 4 + size])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"message {number} of the log of {name} is damaged: {error}") from error
    return StoredRecord(number, before, content, body[4 + size :])


def frame(body: bytes, stored_format: int = FORMAT) -> bytes:
    """Return bytes with the format and a checksum before them."""
    return bytes((stored_format,)) + zlib.crc32(body).to_bytes(4, "big") + body


def unframe(message: bytes, what: str) -> bytes:
    """
    Return the bytes behind format and checksum.

    :raises UnknownFormat: another version has written them.
    :raises Corrupt: they are damaged.
    """
    if not message:
        raise Corrupt(f"{what} is empty")
    if message[0] not in (FORMAT, FORGETTING_FORMAT):
        raise UnknownFormat(what, message[0])
    body = message[_FRAME_HEAD:]
    if len(message) < _FRAME_HEAD or zlib.crc32(body) != int.from_bytes(message[1:_FRAME_HEAD], "big"):
        raise Corrupt(f"{what} is damaged: its checksum is wrong")
    return body


def branch_of(origin: Origin | RememberedCopy) -> Branch | None:
    """Return the branch of an entry, or None."""
    return Branch(TxnID.parse(origin.txn), origin.branch) if origin.txn else None
