"""One stream of ledgers: its subjects, its configuration, and the names of the managed ledgers in it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from txnframework.errors import Corrupt, StoreMismatch, Unavailable
from txnframework_nats.ledgers._log import LogSubjects
from txnframework_nats.ledgers._records import frame, unframe
from txnframework_nats.ledgers._requests import Draft, Requests

STREAM_NOT_FOUND = 10059

_PAGE = 1_000
_PAGE_BYTES = 4 * 1024 * 1024
_NANOSECONDS = 1_000_000_000


class Named(msgspec.Struct, frozen=True, array_like=True):
    """The record of a name: the name, and the token of the log that it names."""

    name: str
    log: str


class FoundName(msgspec.Struct, frozen=True):
    """A name's record as it was read, with the number of its message."""

    number: int
    named: Named


_named = msgspec.msgpack.Decoder(Named)


def digest(name: str) -> str:
    """Return the token of a name in subjects: a name itself may be too long, and hold any character."""
    return hashlib.sha256(name.encode()).hexdigest()[:40]


class Shard:
    """
    One of the streams over which the managed ledgers of an installation are spread, by a hash of their names.

    All messages about one managed ledger are in one stream, so that they can be stored together.
    """

    def __init__(self, requests: Requests, prefix: str, number: int) -> None:
        self.requests = requests
        self.number = number
        self.stream = f"{prefix}-ledgers-{number}"
        self._base = f"{prefix}.ledgers.{number}"
        self._wakes = f"{prefix}.ledger-wakes.{number}"
        self._turns = f"{prefix}.ledger-turns.{number}"
        self._names: dict[str, str] = {}

    @property
    def root(self) -> str:
        """The subject of what describes the installation; it is used in the first stream."""
        return f"{self._base}.root"

    def subjects(self, log: str) -> LogSubjects:
        """Return the subjects of a log."""
        base = self._base
        return LogSubjects(self.stream, f"{base}.l.{log}", f"{base}.d.{log}", f"{base}.s.{log}", f"{self._turns}.{log}")

    def wakes(self, log: str) -> str:
        """Return the subject of the servers' notifications that a record was stored in a log."""
        return f"{self._wakes}.{log}"

    def numbers(self, coordinator: int | None) -> str:
        """Return the subject of the transaction numbers of a coordinator; None: of all."""
        return f"{self._base}.t.{'*' if coordinator is None else coordinator}"

    async def describe(self) -> dict[str, Any] | None:
        """Return the stream as the servers describe it, or None if it does not exist."""
        answer = await self.requests.api(f"STREAM.INFO.{self.stream}", {})
        return self._unless_missing(answer)

    async def create(self, replicas: int, bytes_max: int) -> dict[str, Any]:
        """
        Create the stream, or find it.

        :raises StoreMismatch: it exists, and another program or other options made it.
        :raises Unavailable: the servers refuse it.
        """
        answer = await self.requests.api(f"STREAM.CREATE.{self.stream}", self._configuration(replicas, bytes_max))
        error = answer.get("error")
        if error is not None:
            found = await self.describe()
            if found is None:
                raise Unavailable(f"stream {self.stream} cannot be created: {error.get('description')}")
            return found
        return answer

    async def find_name(self, name: str) -> FoundName | None:
        """Return the record of a name, or None."""
        found = await self.requests.last_at_leader(self.stream, self._name_subject(digest(name)))
        return None if found is None else FoundName(found.number, self._decode(found.data))

    def name_draft(self, name: str, log: str) -> Draft:
        """Return the message that gives a name, which is free, to a log."""
        encoded = frame(msgspec.msgpack.encode(Named(name, log)))
        return Draft(self._name_subject(digest(name)), encoded, 0)

    async def remove_name(self, name: str, number: int) -> None:
        """Remove the record of a name, unless it is later than this number."""
        await self.requests.purge(self.stream, self._name_subject(digest(name)), number + 1)

    async def names(self) -> list[str]:
        """Return all names in this stream, in any order, with every name that was confirmed before the call."""
        digests: list[str] = []
        filtered = self._name_subject("*")
        while True:
            request = {"subjects_filter": filtered, "offset": len(digests)}
            answer = await self.requests.api(f"STREAM.INFO.{self.stream}", request)
            self._unless_missing(answer)
            page = (answer.get("state") or {}).get("subjects") or {}
            digests += [subject.rpartition(".")[2] for subject in page]
            if not page or len(digests) >= (answer.get("total") or 0):
                break
        # A digest never changes its name. So what was read once, or at a replica that lags behind, is as good.
        if any(one not in self._names for one in digests):
            await self._read_names(filtered)
        found: list[str] = []
        for one in digests:
            if one not in self._names:
                message = await self.requests.last_at_leader(self.stream, self._name_subject(one))
                if message is None:
                    continue
                self._names[one] = self._decode(message.data).name
            found.append(self._names[one])
        return found

    async def _read_names(self, filtered: str) -> None:
        number = 1
        while messages := await self.requests.some(self.stream, filtered, number, _PAGE, _PAGE_BYTES):
            for message in messages:
                self._names[message.subject.rpartition(".")[2]] = self._decode(message.data).name
            number = messages[-1].number + 1

    def _name_subject(self, token: str) -> str:
        return f"{self._base}.n.{token}"

    def _decode(self, message: bytes) -> Named:
        what = f"a name in stream {self.stream}"
        try:
            return _named.decode(unframe(message, what))
        except msgspec.MsgspecError as error:
            raise Corrupt(f"{what} is damaged: {error}") from error

    def _unless_missing(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        error = answer.get("error")
        if error is None:
            return answer
        if error.get("err_code") == STREAM_NOT_FOUND:
            return None
        raise Unavailable(f"stream {self.stream} cannot be read: {error.get('description')}")

    def _configuration(self, replicas: int, bytes_max: int) -> dict[str, Any]:
        return {
            "name": self.stream,
            "subjects": [f"{self._base}.>"],
            "storage": "file",
            "retention": "limits",
            # A full stream refuses; with the default it would drop what was confirmed.
            "discard": "new",
            "max_bytes": bytes_max,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "num_replicas": replicas,
            "duplicate_window": 2 * 60 * _NANOSECONDS,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": False,
            "deny_delete": True,
            "republish": {"src": f"{self._base}.l.>", "dest": f"{self._wakes}.>", "headers_only": True},
        }

    def require_fitting(self, found: dict[str, Any]) -> None:
        """
        Raise StoreMismatch if a stream that was found would lose what it confirms, or cannot do what is needed.
        """
        configuration = found.get("config") or {}
        wanted = self._configuration(1, -1)
        for field in ("storage", "retention", "discard", "allow_direct", "allow_atomic", "allow_msg_ttl", "republish"):
            actual = configuration.get(field)
            if field == "republish" and isinstance(actual, dict):
                actual = {key: actual.get(key) for key in wanted[field]}
            if actual != wanted[field]:
                raise StoreMismatch(f"stream {self.stream} has {field} {actual!r}, and {wanted[field]!r} is needed")
        for field in ("max_msgs", "max_msgs_per_subject", "max_age"):
            if (configuration.get(field) or -1) > 0:
                raise StoreMismatch(f"stream {self.stream} has {field} {configuration[field]}: it would lose entries")
