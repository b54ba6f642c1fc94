"""The demo's own access to the stores: it creates and loads topics, reads records and outputs, and splits segments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import txnframework
from txnframework import Isolation, Message, blocking
from txnframework.client import LoopThread
from txnframework.config import load_config, redact_url, store_name
from txnframework.errors import (
    ConfigurationError,
    ReceiveTimeout,
    SubscriptionNotFound,
    TransactionNotFound,
    UnknownPlugin,
)
from txnframework.interfaces import ISharedStore
from txnframework.model.cursor import Cursor
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.plugin import Role, load_plugins
from txnframework_spark.demo.faults import SEGMENTS, BatchRecords, PauseReport, load_batch_records
from txnframework_spark.demo.input import ENRICHED, OUTPUTS, InputRow
from txnframework_spark.demo.report import SplitOutcome
from txnframework_spark.demo.verdict import InputPosition, OutputRow
from txnframework_spark.errors import UnsharedStore, UnusableStore

T = TypeVar("T")

_SENDS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class StoreUrls:
    """The URLs of the stores."""

    metadata: str
    ledger: str

    @classmethod
    def of(cls, metadata: str | None, ledger: str | None, directory: Path) -> StoreUrls:
        """
        Return the requested URLs; by default one SQLite file in the directory.

        Without a URL for the ledger, it is stored with the metadata, or in that file if the metadata store keeps no
        messages.
        """
        own = f"sqlite:///{directory / 'txn.db'}"
        chosen = metadata if metadata is not None else own
        return cls(chosen, ledger if ledger is not None else own if _keeps_no_messages(chosen) else chosen)

    def shown(self) -> dict[str, str]:
        """Return the URLs without their passwords."""
        return {"metadata": redact_url(self.metadata), "ledger": redact_url(self.ledger)}


@dataclass(frozen=True, slots=True)
class DemoNames:
    """Names that are unique to this demo on the stores."""

    token: str

    @classmethod
    def make(cls) -> DemoNames:
        """Return new names."""
        return cls(secrets.token_hex(4))

    @property
    def input(self) -> str:
        """The topic with the input."""
        return f"topic://public/demo-{self.token}/input"

    def output(self, output: str) -> str:
        """Return the topic of an output."""
        return f"topic://public/demo-{self.token}/{output}"

    @property
    def group(self) -> str:
        """The pipeline's subscription."""
        return f"demo-{self.token}"

    @property
    def application(self) -> str:
        """The pipeline's name, which is the same after restarts."""
        return f"demo-{self.token}"


def write_config(path: Path, stores: StoreUrls, entry_messages_max: int) -> Path:
    """Write the configuration of demo and pipeline; only its owner may read it, because URLs contain passwords."""
    path.touch(mode=0o600)
    path.write_text(
        "# Written by txnframework demo.\n"
        f"[metadata]\nurl = {_toml(stores.metadata)}\n\n"
        f"[ledger]\nurl = {_toml(stores.ledger)}\n\n"
        f"[client]\nentry_messages_max = {entry_messages_max}\n\n"
        # No background sweep: a restart must itself find the leftovers of earlier runs.
        "[transactions]\nsweep = false\n",
        encoding="utf-8",
    )
    return path


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class DemoStores:
    """One client of the stores for synchronous callers; created by ``open``."""

    def __init__(self, client: txnframework.Client, loop: LoopThread, names: DemoNames) -> None:
        self._client = client
        self._loop = loop
        self._names = names

    @classmethod
    @contextlib.contextmanager
    def open(cls, config: Path, names: DemoNames) -> Iterator[DemoStores]:
        """Open the stores of the configuration; UnsharedStore if other processes cannot use them too."""
        loop = LoopThread.shared()
        opening = txnframework.open(config)
        try:
            client = loop.run(_enter(opening))
        except ConfigurationError as error:
            # The file is written by the demo; its values come from options.
            option = {"metadata.url": "--metadata", "ledger.url": "--ledger"}.get(error.path)
            if option is None:
                raise
            raise UnusableStore(option, error.reason) from error
        try:
            _require_shared(client, config)
            yield cls(client, loop, names)
        finally:
            loop.run(_leave(opening))

    def make_topics(self) -> None:
        """Create the input and both outputs, with the planned numbers of segments."""
        for topic in (self._names.input, *map(self._names.output, OUTPUTS)):
            self._run(self._client.create_topic(topic, segments=SEGMENTS))

    def load(self, rows: Sequence[InputRow]) -> dict[int, InputPosition]:
        """Send rows to the input; return the position of each line."""
        return self._run(self._load(rows))

    def load_batch_records(self, checkpoint: Path, report: PauseReport) -> BatchRecords:
        """Return the records of the batch at which the pipeline is paused."""
        subscription = (self._names.input, self._names.group)
        return self._run(load_batch_records(self._client.host.metadata, checkpoint, subscription, report))

    def split(self, written: Collection[str], transaction: str) -> tuple[SplitOutcome, ...]:
        """Split a segment of ``enriched`` that an open transaction has written to, and one of the input it reads."""
        topics = (self._names.output(ENRICHED), self._names.input)
        return tuple(self._run(self._split_one(topic, written, transaction)) for topic in topics)

    def input_segments(self) -> dict[int, str]:
        """Return the full names of the input's segments, by their ids."""
        layout = self._run(self._layout(self._names.input))
        return {segment.id: str(layout.name_of(segment.id)) for segment in layout.in_order()}

    def cursors(self) -> dict[str, Cursor]:
        """Return the pipeline's cursors, by segment of the input."""
        found = {name: self._run(self._cursor(name)) for name in self.input_segments().values()}
        return {name: cursor for name, cursor in found.items() if cursor is not None}

    def outcomes(self, transactions: Collection[str]) -> dict[str, str]:
        """Return the outcome of each transaction; unknown ones are left out."""
        found = {}
        for txn in transactions:
            with contextlib.suppress(TransactionNotFound):
                found[txn] = self._run(self._client.outcome(TxnID.parse(txn))).value
        return found

    # -- details --------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    async def _load(self, rows: Sequence[InputRow]) -> dict[int, InputPosition]:
        places: dict[int, InputPosition] = {}
        async with await self._client.producer(self._names.input) as producer:
            for first in range(0, len(rows), _SENDS_AT_ONCE):
                part = rows[first : first + _SENDS_AT_ONCE]
                # Concurrent sends share entries, up to the configured size.
                ids = await asyncio.gather(*(producer.send(row.to_message(), key=row.key) for row in part))
                places.update(
                    (row.line, InputPosition(at.segment, at.position)) for row, at in zip(part, ids, strict=True)
                )
        return places

    async def _layout(self, topic: str) -> Layout:
        return await self._client.host.topics.layout(TopicName.parse(topic))

    async def _cursor(self, segment: str) -> Cursor | None:
        subscription = await self._client.host.subscription(self._names.input, self._names.group, segment)
        try:
            return await subscription.cursor.load()
        except SubscriptionNotFound:
            return None  # the pipeline ended before it acknowledged anything

    async def _split_one(self, topic: str, written: Collection[str], transaction: str) -> SplitOutcome:
        """Split an active segment, preferably one that was written to."""
        layout = await self._layout(topic)
        names = {str(layout.name_of(segment.id)): segment.id for segment in layout.active()}
        chosen = next((name for name in names if name in written), next(iter(names)))
        children = await self._client.split(topic, names[chosen])
        return SplitOutcome(chosen, tuple(children), transaction, chosen in written)


def _keeps_no_messages(url: str) -> bool:
    registry, scheme = load_plugins(), store_name(url)
    return scheme in registry.names(Role.METADATA_STORE) and scheme not in registry.names(Role.LEDGER_STORE)


def _require_shared(client: txnframework.Client, config: Path) -> None:
    """
    Raise UnsharedStore if other processes cannot use the stores.

    Ledger stores declare no such property; one is judged by the metadata store with the same scheme.
    """
    urls = load_config(config)
    registry = client.host.registry
    for option, url in (("--metadata", urls.metadata.url), ("--ledger", urls.ledger.url)):
        scheme = store_name(url)
        with contextlib.suppress(UnknownPlugin):
            if not ISharedStore.implementedBy(registry.metadata_store(scheme).implementation):
                raise UnsharedStore(option, scheme)


async def _enter(opening: contextlib.AbstractAsyncContextManager[txnframework.Client]) -> txnframework.Client:
    return await opening.__aenter__()


async def _leave(opening: contextlib.AbstractAsyncContextManager[txnframework.Client]) -> None:
    await opening.__aexit__(None, None, None)


_RECEIVE_MAX: Final = 500
_SILENCE_MS: Final = 1_000
"""The time without a new message after which reading ends, if all expected messages have arrived."""
_PATIENCE_MS: Final = 10_000
"""The same if messages are missing."""


def read_output(config: Path, topic: str, output: str, expected: int, segments: Mapping[int, str]) -> list[OutputRow]:
    """Return every row of an output that a consumer receives; ``segments``: names of the input's segments by id."""
    rows: list[OutputRow] = []
    with blocking.open(config) as client, client.consumer(topic, _new_name(), start="earliest") as consumer:
        while True:
            wait_ms = _SILENCE_MS if len(rows) >= expected else _PATIENCE_MS
            try:
                messages = consumer.receive_many(messages_max=_RECEIVE_MAX, timeout_ms=wait_ms)
            except ReceiveTimeout:
                return rows
            rows.extend(output_row(output, message, segments) for message in messages)
            consumer.ack(*messages)


def count_discarded(config: Path, topic: str) -> int:
    """Return the number of stored rows in a topic that are not committed, and so hidden from consumers."""
    with (
        blocking.open(config) as client,
        client.reader(topic, isolation=Isolation.READ_UNCOMMITTED) as reader,
    ):
        return sum(not message.committed for message in reader)


def output_row(output: str, message: Message, segments: Mapping[int, str]) -> OutputRow:
    """Return a message as evidence; an unreadable one has no line, which is a finding."""
    txn = None if message.txn_id is None else str(message.txn_id)
    try:
        document = json.loads(message.value or b"")
        place = document.pop("place")
        position = Position(int(place["ledger"]), int(place["entry"]), int(place["index"]))
        return OutputRow(
            output, txn, int(document["line"]), InputPosition(segments[place["segment"]], position), document
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return OutputRow(output, txn, None, None, {"unreadable": repr(message.value and message.value[:200])})


def _new_name() -> str:
    return f"check-{secrets.token_hex(4)}"
