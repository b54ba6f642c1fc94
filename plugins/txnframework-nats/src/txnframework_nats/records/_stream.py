"""The stream of the records: it is made, its settings are checked, and it contains the identity of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from txnframework.errors import Conflict, CorruptRecord, InvalidInput, OutcomeUnknown, Unavailable, UnknownFormat
from txnframework_nats.connection._attempts import Attempts
from txnframework_nats.connection._connection import Message, NatsConnection
from txnframework_nats.connection._failures import (
    NO_MESSAGE,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    ReplyLost,
    RequestRefused,
)
from txnframework_nats.records._layout import EXPECTED_HEADER, ROLLUP, Layout

STORE_FORMAT = 1
SKIPPING_FORMAT = 2
"""The format of a store that continues another store's numbers; a release that does not know this must not open it."""

_REQUIRED: dict[str, object] = {
    "retention": "limits",
    "storage": "file",
    "max_msgs_per_subject": -1,
    "allow_rollup_hdrs": True,
    "allow_atomic": True,
    "allow_msg_ttl": True,
    "max_age": 0,
    "discard": "new",
}
"""Settings without which the stream would lose records, or could not apply batches."""

_REFUSED = ("sealed", "deny_purge", "mirror", "sources", "subject_transform")


class LastMessage(msgspec.Struct, frozen=True):
    """The last message of a subject; ``write`` names the write that it belongs to."""

    sequence: int
    payload: bytes
    headers: bytes


class StreamState(msgspec.Struct, frozen=True):
    """What the leader of a stream says of it; ``created`` differs from that of a stream of the same name before."""

    last_sequence: int
    created: str
    replicas: int


class _Store(msgspec.Struct, omit_defaults=True):
    """``numbers_after``: sequential numbers are counted from here on."""

    format: int
    identity: str
    numbers_after: int = 0


class _AnyStore(msgspec.Struct):
    format: int


class RecordStream:
    """The stream of one store, as its leader knows it."""

    def __init__(self, connection: NatsConnection, layout: Layout) -> None:
        self.layout = layout
        self._connection = connection

    async def open(self, replicas: int, new_identity: str, attempts: Attempts) -> tuple[StreamState, str]:
        """
        Return the state of the stream and the identity of the store; make both if they are missing.

        After a lost reply this is repeated: what the first attempt has made is found.

        :raises InvalidInput: the servers refuse the stream, or it has settings that would lose records.
        :raises UnknownFormat: the store was created by a later release.
        :raises Unavailable: the servers do not answer in time.
        """
        while True:
            try:
                return await self._open(replicas, new_identity)
            except ReplyLost as error:
                if attempts.are_over:
                    raise Unavailable(str(error)) from error
            await attempts.pause()

    async def _open(self, replicas: int, new_identity: str) -> tuple[StreamState, str]:
        found = await self._info()
        if found is None:
            await self._create(replicas)
            found = await self._info()
        if found is None:
            raise Unavailable(f"{self._connection.shown_url}: the stream {self.layout.stream} disappeared")
        self._check(found["config"])
        return _state(found), await self._identity(new_identity)

    async def state(self) -> StreamState:
        """
        Ask the leader for the state of the stream.

        :raises Unavailable: the stream is gone, or no server answered.
        :raises ReplyLost: the leader did not answer in time.
        """
        found = await self._info()
        if found is None:
            raise Unavailable(f"{self._connection.shown_url}: the stream {self.layout.stream} was deleted")
        return _state(found)

    async def last(self, subject: str) -> LastMessage | None:
        """Ask the leader for the last message of a subject."""
        return await self._get({"last_by_subj": subject})

    async def next(self, sequence: int) -> int | None:
        """Ask the leader for the number of the first message from ``sequence`` on; None: there is none."""
        found = await self._get({"seq": sequence, "next_by_subj": f"{self.layout.root}.>"})
        return None if found is None else found.sequence

    async def take_identity(self, identity: str, attempts_max: int) -> None:
        """
        Replace the identity of the store.

        :raises OutcomeUnknown: it may have been replaced.
        """
        await self._change(lambda store: msgspec.structs.replace(store, identity=identity), attempts_max)

    async def numbers_after(self) -> int:
        """Return the number from which sequential numbers are counted."""
        try:
            return _decode_store(await self.last(self.layout.identity)).numbers_after
        except ReplyLost as error:
            raise Unavailable(str(error)) from error

    async def skip_numbers(self, number: int, attempts_max: int) -> None:
        """
        Count sequential numbers from ``number`` on, unless they are counted from a higher one.

        :raises OutcomeUnknown: they may be.
        """

        def skip(store: _Store) -> _Store:
            return _Store(SKIPPING_FORMAT, store.identity, max(store.numbers_after, number))

        await self._change(skip, attempts_max)

    async def _change(self, change: Callable[[_Store], _Store], attempts_max: int) -> None:
        try:
            for _ in range(attempts_max):
                found = await self.last(self.layout.identity)
                payload = msgspec.json.encode(change(_decode_store(found)))
                assert found is not None
                try:
                    await self._connection.publish(_conditional(self.layout.identity, payload, found.sequence))
                except RequestRefused as error:
                    if not error.is_lost_race:
                        raise Unavailable(f"{self._connection.shown_url}: {error}") from error
                    continue
                return
        except ReplyLost as error:
            raise OutcomeUnknown(str(error)) from error
        raise Conflict(f"{self._connection.shown_url}: others changed the identity of the store in every attempt")

    async def _identity(self, new_identity: str) -> str:
        found = await self.last(self.layout.identity)
        if found is None:
            payload = msgspec.json.encode(_Store(STORE_FORMAT, new_identity))
            try:
                # If several processes open the store first, one message is stored.
                await self._connection.publish(_conditional(self.layout.identity, payload, 0))
            except RequestRefused as error:
                if not error.is_lost_race:
                    raise InvalidInput(f"{self._connection.shown_url}: {error}") from error
            except ReplyLost:
                pass  # it is stored or not: the next read shows it
            found = await self.last(self.layout.identity)
        return _decode_store(found).identity

    async def _info(self) -> dict[str, Any] | None:
        try:
            return await self._connection.api(f"STREAM.INFO.{self.layout.stream}")
        except RequestRefused as error:
            if error.code == STREAM_NOT_FOUND:
                return None
            raise Unavailable(f"{self._connection.shown_url}: {error}") from error

    async def _create(self, replicas: int) -> None:
        config = {
            **_REQUIRED,
            "name": self.layout.stream,
            "subjects": self.layout.subjects,
            "num_replicas": replicas,
            "allow_direct": True,
            "description": "Records of txnframework",
        }
        try:
            await self._connection.api(f"STREAM.CREATE.{self.layout.stream}", config)
        except RequestRefused as error:
            # Another process has created it, maybe with another number of replicas.
            if error.code != STREAM_NAME_IN_USE:
                raise InvalidInput(
                    f"{self._connection.shown_url}: the servers refuse the stream {self.layout.stream} with {replicas}"
                    f" replicas: {error}"
                ) from error

    def _check(self, config: dict[str, Any]) -> None:
        what = f"{self._connection.shown_url}: the stream {self.layout.stream}"
        if config.get("subjects") != self.layout.subjects:
            raise InvalidInput(f"{what} belongs to another program; name another prefix in the URL")
        for name, value in _REQUIRED.items():
            if config.get(name, 0 if name == "max_age" else None) != value:
                raise InvalidInput(f"{what} has {name} {config.get(name)}, and {value} is needed")
        for name in _REFUSED:
            if config.get(name):
                raise InvalidInput(f"{what} has the setting {name}, with which it cannot be used")

    async def _get(self, wanted: dict[str, Any]) -> LastMessage | None:
        try:
            found = await self._connection.api(f"STREAM.MSG.GET.{self.layout.stream}", wanted)
        except RequestRefused as error:
            if error.code == NO_MESSAGE:
                return None
            raise Unavailable(f"{self._connection.shown_url}: {error}") from error
        message = msgspec.convert(found["message"], _Found, strict=False)
        return LastMessage(message.seq, message.data, message.hdrs)


class _Found(msgspec.Struct):
    """A message in a reply; binary fields are in base64."""

    seq: int
    data: bytes = b""
    hdrs: bytes = b""


def _conditional(subject: str, payload: bytes, sequence: int) -> Message:
    return Message(subject, payload, {EXPECTED_HEADER: str(sequence), **ROLLUP})


def _state(found: dict[str, Any]) -> StreamState:
    return StreamState(
        int(found["state"]["last_seq"]), str(found["created"]), int(found["config"].get("num_replicas", 1))
    )


def _decode_store(found: LastMessage | None) -> _Store:
    if found is None:
        raise CorruptRecord("identity", "its message", "the message is missing")
    try:
        form = msgspec.json.decode(found.payload, type=_AnyStore).format
        if form not in (STORE_FORMAT, SKIPPING_FORMAT):
            raise UnknownFormat("the store", form)
        return msgspec.json.decode(found.payload, type=_Store)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord("identity", "its message", str(error)) from error
