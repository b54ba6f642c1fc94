"""The stores and the checkpoint of one test, as seen by a client outside of the pipeline."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import txnframework
from txnframework.broker import Host
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.ids import TxnID
from txnframework.model.key_hashes import key_hash
from txnframework.model.layout import SegmentState
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, Limit
from txnframework.model.reads import ReadRequest
from txnframework.model.transactions import Action, End, State
from txnframework_spark import process
from txnframework_spark.microbatch.batch import application_coordinator
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.testing.expectations import Row

ENTRY_MESSAGES = 5
"""Messages in an entry of ``publish``; batches are cut between entries."""


@dataclass
class Stores:
    """Stores at ``url``, and a checkpoint in ``directory``."""

    directory: Path
    url: str

    @property
    def host(self) -> Host:
        """This process's host over the stores."""
        return process.host(StoreOptions(metadata=self.url))

    def copy(self, directory: Path) -> Stores:
        """Return a copy of all files, as a kill of all processes would leave them now; no process may be writing.

        The stores must be an SQLite file in ``directory``.
        """
        directory.mkdir()
        file = Path(self.url.removeprefix("sqlite:///"))
        for found in (file, file.with_name(f"{file.name}-wal")):
            if found.exists():
                shutil.copyfile(found, directory / found.name)
        made = Stores(directory, f"sqlite:///{directory / file.name}")
        if self.checkpoint.exists():
            shutil.copytree(self.checkpoint, made.checkpoint)
        return made

    # -- the checkpoint -------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.directory / "checkpoint"

    def forget_last_batch(self) -> int:
        """Remove the last commit from Spark's checkpoint, like a kill right after the decision; return its number."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    def keep_checkpoint(self) -> Path:
        """Return a copy of the checkpoint in its current state."""
        return Path(shutil.copytree(self.checkpoint, self.directory / "older-checkpoint"))

    def restore_checkpoint(self, kept: Path) -> None:
        """Replace the checkpoint by a copy."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(kept, self.checkpoint)

    # -- topics ---------------------------------------------------------------------------------------

    def create(self, *topics: str, segments: int = 2) -> None:
        """Create topics."""
        for topic in topics:
            process.run(self.host.topics.create(TopicName.parse(topic), segments))

    def subscribe(self, topic: str, name: str) -> None:
        """Create a subscription that begins at the earliest message."""
        process.run(self.host.topics.subscribe(TopicName.parse(topic), name, "earliest"))

    def split(self, topic: str, segment_id: int) -> None:
        """Split a segment."""
        process.run(self.host.topics.split(TopicName.parse(topic), segment_id))

    def split_all(self, topic: str) -> None:
        """Split every active segment of a topic."""
        for segment in self._active(topic):
            self.split(topic, segment)

    def merge_all(self, topic: str) -> None:
        """Merge the active segments of a topic in pairs."""
        active = self._active(topic)
        for left, right in zip(active[::2], active[1::2], strict=True):
            process.run(self.host.topics.merge(TopicName.parse(topic), left, right))

    def _active(self, topic: str) -> list[int]:
        layout = process.run(self.host.topics.layout(TopicName.parse(topic)))
        assert all(segment.state is SegmentState.ACTIVE for segment in layout.active())
        return [segment.id for segment in layout.active()]

    def publish(self, values: list[str], topic: str = "in", published_ms: int = 0) -> None:
        """Append messages in entries of five, outside of transactions."""
        process.run(self._publish(self.host, values, TopicName.parse(topic), published_ms))

    async def _publish(self, host: Host, values: list[str], topic: TopicName, published_ms: int) -> None:
        layout = await host.topics.finish_changes(topic)
        group_by_segment: dict[int, list[str]] = {}
        for value in values:
            group_by_segment.setdefault(layout.route(key_hash(value.encode())).id, []).append(value)
        for segment_id, mine in group_by_segment.items():
            buffer = (await host.segment(str(layout.name_of(segment_id)))).buffer
            for first in range(0, len(mine), ENTRY_MESSAGES):
                messages = [
                    EntryMessage(value.encode(), value.encode(), (), number, published_ms)
                    for number, value in enumerate(mine[first : first + ENTRY_MESSAGES])
                ]
                await buffer.append((Append(encode_entry(messages, "test", None), len(messages)),))

    # -- what can be read -----------------------------------------------------------------------------

    def read(self, topic: str = "out") -> Counter[str]:
        """Return the number of committed copies of each value in a topic."""
        return Counter(row.value for row in self.rows(topic))

    def rows(self, *topics: str) -> tuple[Row, ...]:
        """Return every committed message of the topics."""
        host = self.host
        return tuple(row for topic in topics for row in process.run(self._read(host, TopicName.parse(topic))))

    async def _read(self, host: Host, topic: TopicName) -> list[Row]:
        found: list[Row] = []
        layout = await host.topics.layout(topic)
        for segment in layout.in_order():
            buffer = (await host.segment(str(layout.name_of(segment.id)))).buffer
            await buffer.max_read_position()
            after = EARLIEST
            while True:
                page = await buffer.read(ReadRequest(after, Limit(100)))
                for entry in page.entries:
                    view = EntryView(entry.data)
                    txn = None if view.branch is None else str(view.branch.txn_id)
                    found += [Row(topic.name, (message.value or b"").decode(), txn) for message in view.messages()]
                if page.upto == after:
                    break
                after = page.upto
        return found

    def outcome(self, txn: str) -> State:
        """Return the state of a transaction."""
        return process.run(self._outcome(TxnID.parse(txn)))

    async def _outcome(self, txn_id: TxnID) -> State:
        return (await (await application_coordinator(self.host)).describe(txn_id)).state

    def expire(self, ahead_ms: int) -> None:
        """Abort the transactions whose deadlines have passed for a clock that is so far ahead."""
        process.run(self._expire(ahead_ms))

    async def _expire(self, ahead_ms: int) -> None:
        # Uses a host that does not sweep in the background; the host of this process does.
        stores = {"metadata": {"url": self.url}, "ledger": {"url": self.url}, "transactions": {"sweep": False}}
        async with txnframework.open(stores) as client:
            host = client.host
            await (await application_coordinator(host)).expire(host.environment.now_ms() + ahead_ms)

    def abort(self, txn: str) -> None:
        """End a transaction as an operator."""
        process.run(self._abort(TxnID.parse(txn)))

    async def _abort(self, txn_id: TxnID) -> None:
        await (await application_coordinator(self.host)).end(End(txn_id, Action.ABORT, operator=True))

    def seek_to_the_beginning(self, topic: str, name: str) -> None:
        """Move a subscription back to the earliest message."""
        process.run(self._seek(TopicName.parse(topic), name))

    async def _seek(self, topic: TopicName, name: str) -> None:
        layout = await self.host.topics.layout(topic)
        for segment in layout.in_order():
            subscription = await self.host.subscription(str(topic), name, str(layout.name_of(segment.id)))
            await subscription.cursor.seek(EARLIEST)

    def is_locked(self) -> bool:
        """
        Return whether a process is writing to the stores at the moment; always False unless they are a SQLite file.
        """
        if not self.url.startswith("sqlite:///"):
            return False
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        else:
            connection.rollback()
            return False
        finally:
            connection.close()


def values(first: int, last: int) -> list[str]:
    """Return different values, by number."""
    return [f"value {number}" for number in range(first, last)]


def once(given: Iterable[str]) -> Counter[str]:
    """Return the result of ``Stores.read`` if every value was processed exactly once."""
    return Counter(given)
