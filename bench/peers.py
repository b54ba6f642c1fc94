"""Measure whole uses of the framework beside kept figures of Kafka and Pulsar: ``python bench/peers.py``.

The figures of the peers are in ``peers.toml``, with how they were taken. They were taken on one machine, and this
script does not run the peers. So compare the shape of a row (how it grows with segments and clients) rather than one
number with another, unless your machine is the one that is described there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter, process_time

from backend import Backend
from backends import BACKENDS
from measurement import opened, timed
from rich.console import Console
from rich.table import Table

from txnframework import Client, Consumer, Message, PlannedSend, Producer, Transaction

PEERS = Path(__file__).parent / "peers.toml"
MESSAGE = b"x" * 100
FILE_WIDTH = 200
"""The columns of the table if it is not printed to a terminal."""

SIZES = (1, 10, 100, 1_000, 10_000)
Row = dict[str, float]


@dataclass(frozen=True)
class Measurement:
    """
    One client over one backend.

    ``scale`` shortens every loop. ``freezes``: ``ready`` exempts what exists by then from garbage collection.
    """

    client: Client
    scale: float
    freezes: bool = False
    _names: count[int] = field(default_factory=count)

    def times(self, whole: int) -> int:
        return max(1, round(whole * self.scale))

    def ready(self) -> float:
        """Return the processor seconds that this process has used before a measurement."""
        if self.freezes:
            gc.collect()
            gc.freeze()
        return process_time()

    async def topic(self) -> str:
        """Create a topic that nothing else uses."""
        name = f"t{next(self._names)}"
        await self.client.create_topic(name)
        return name

    async def producers(self, number: int) -> list[Producer]:
        """Return producers that have sent once, each to a topic of its own."""
        made = [await self.client.producer(await self.topic()) for _ in range(number)]
        await asyncio.gather(*(producer.send(MESSAGE) for producer in made))
        return made


async def _in_steps(client: Client, producers: Sequence[Producer]) -> None:
    async with client.transaction() as txn:
        await asyncio.gather(*(producer.send(MESSAGE, txn=txn) for producer in producers))


async def _by_transact(client: Client, producers: Sequence[Producer]) -> None:
    await client.transact(*(producer.outgoing(MESSAGE) for producer in producers))


# A whole transaction that sends a message by each producer; the name of a figure ends in the way that it was taken.
WAYS: dict[str, Callable[[Client, Sequence[Producer]], Awaitable[None]]] = {"": _in_steps, " by transact": _by_transact}


async def transactions_by_segments(run: Measurement) -> Row:
    """
    The milliseconds of a whole transaction: begin, one message to each segment, commit.

    The processor time is that of this process, without a server.
    """
    found = {}
    for segments in (1, 10, 100, 1000):
        producers = await run.producers(segments)
        for way, whole in WAYS.items():
            await whole(run.client, producers)
            used = run.ready()
            took = [await timed(whole(run.client, producers)) for _ in range(run.times(max(6, 200 // segments)))]
            found[f"{segments} segments{way}, ms"] = statistics.median(took) * 1e3
            found[f"{segments} segments{way}, processor ms"] = (process_time() - used) / len(took) * 1e3
    return found


async def transactions_by_clients(run: Measurement) -> Row:
    """The transactions per second of concurrent clients, each with one message in one transaction after another."""
    found = {}
    for clients in (1, 16, 64):
        producers = await run.producers(clients)
        each = run.times(400 if clients == 1 else 100)
        for way, whole in WAYS.items():
            used = run.ready()
            seconds = await timed(asyncio.gather(*(_repeat(run.client, whole, one, each) for one in producers)))
            found[f"{clients} clients{way}, txn/s"] = clients * each / seconds
            found[f"{clients} clients{way}, processor µs/txn"] = (process_time() - used) / (clients * each) * 1e6
    return found


async def _repeat(
    client: Client, whole: Callable[[Client, Sequence[Producer]], Awaitable[None]], producer: Producer, times: int
) -> None:
    for _ in range(times):
        await whole(client, (producer,))


async def loops(run: Measurement) -> Row:
    """The messages per second of a consume-transform-produce loop, with 100 messages per transaction and with one."""
    found = {}
    for together, messages in ((100, 10_000), (1, 400)):
        for way, forward in {"": _forward_in_steps, " by transact": _forward_by_transact}.items():
            source, target = await run.topic(), await run.topic()
            producer = await run.client.producer(target)
            left = run.times(messages)
            await (await run.client.producer(source)).send_many([MESSAGE] * left)
            async with await run.client.consumer(source, "s", start="earliest") as consumer:
                begun, forwarded = perf_counter(), 0
                while forwarded < left:
                    messages_max = min(together, left - forwarded)
                    received = await consumer.receive_many(messages_max=messages_max, timeout_ms=60_000)
                    await forward(run.client, consumer, producer, received)
                    forwarded += len(received)
                found[f"loop of {together}{way}, messages/s"] = forwarded / (perf_counter() - begun)
    return found


async def _forward_in_steps(
    client: Client, consumer: Consumer, producer: Producer, received: Sequence[Message]
) -> None:
    async with client.transaction() as txn:
        await producer.send_many([message.value for message in received], txn=txn)
        await consumer.ack(*received, txn=txn)


async def _forward_by_transact(
    client: Client, consumer: Consumer, producer: Producer, received: Sequence[Message]
) -> None:
    outgoing = (producer.outgoing(message.value) for message in received)
    await client.transact(*outgoing, consumer.acknowledging(*received))


async def handlers(run: Measurement) -> Row:
    """The same loops by ``run_batches``, with handlers that return what is to be sent, and that get the transaction."""
    found = {}
    for together, messages in ((100, 10_000), (1, 400)):
        for way, loop in (("returning", _returning), ("with txn", _with_txn)):
            source, target = await run.topic(), await run.topic()
            producer = await run.client.producer(target)
            number = run.times(messages)
            await (await run.client.producer(source)).send_many([MESSAGE] * number)
            async with await run.client.consumer(source, "s", start="earliest") as consumer:
                seconds = await timed(loop(consumer, producer, together, number))
            found[f"handlers {way}, loop of {together}, messages/s"] = number / seconds
    return found


async def _returning(consumer: Consumer, producer: Producer, together: int, messages: int) -> None:
    left = messages

    async def handle(received: tuple[Message, ...]) -> list[PlannedSend]:
        nonlocal left
        left -= len(received)
        if not left:
            consumer.stop()
        return [producer.outgoing(message.value) for message in received]

    await consumer.run_batches(handle, messages_max=together)


async def _with_txn(consumer: Consumer, producer: Producer, together: int, messages: int) -> None:
    left = messages

    async def handle(received: tuple[Message, ...], txn: Transaction) -> None:
        nonlocal left
        left -= len(received)
        if not left:
            consumer.stop()
        await producer.send_many([message.value for message in received], txn=txn)

    await consumer.run_batches(handle, messages_max=together)


async def plain_messages(run: Measurement) -> Row:
    """The messages per second without transactions: sends that are awaited in groups, ``send_many``, and receiving."""
    topic = await run.topic()
    producer = await run.client.producer(topic)
    single, bulk = run.times(20_000), run.times(100_000)

    async def sends() -> None:
        for _ in range(0, single, 500):
            await asyncio.gather(*(producer.send(MESSAGE) for _ in range(500)))

    used, whole = run.ready(), -(-single // 500) * 500
    seconds = await timed(sends())
    found = {"plain sends, messages/s": whole / seconds}
    found["plain sends, processor µs/message"] = (process_time() - used) / whole * 1e6
    found["send_many, messages/s"] = bulk / await timed(producer.send_many([MESSAGE] * bulk))
    async with await run.client.consumer(topic, "s", start="earliest") as consumer:
        received, begun = 0, perf_counter()
        while received < bulk:
            received += len(await consumer.receive_many(messages_max=1000, timeout_ms=60_000))
        found["receive_many, messages/s"] = received / (perf_counter() - begun)
    return found


async def visible(run: Measurement) -> Row:
    """The milliseconds from a commit's return to the message's arrival at a waiting consumer."""
    topic = await run.topic()
    producer = await run.client.producer(topic)
    took = []
    async with await run.client.consumer(topic, "s", start="earliest") as consumer:
        for _ in range(run.times(100)):
            waiting = asyncio.ensure_future(consumer.receive(timeout_ms=60_000))
            await asyncio.sleep(0)
            async with run.client.transaction() as txn:
                await producer.send(MESSAGE, txn=txn)
            begun = perf_counter()
            await waiting
            took.append(perf_counter() - begun)
    return {"visible after commit, ms": statistics.median(took) * 1e3}


async def growth(run: Measurement) -> Row:
    """The milliseconds of a whole transaction as its messages, its acknowledgments or the other open ones increase."""
    found = {}
    for size in SIZES:
        if size > SIZES[-1] * run.scale:
            break
        producer = await run.client.producer(await run.topic())
        took = await _median(run, lambda producer=producer, size=size: _sends(run.client, producer, size))
        found[f"{size} messages, ms"] = took * 1e3
        found[f"{size} acks, ms"] = await _acks(run, size) * 1e3
        async with AsyncExitStack() as others:
            for _ in range(size):
                await producer.send(MESSAGE, txn=await others.enter_async_context(run.client.transaction()))
            took = await _median(run, lambda producer=producer: _sends(run.client, producer, 1))
        found[f"beside {size} open, ms"] = took * 1e3
    return found


async def _median(run: Measurement, work: Callable[[], Awaitable[None]]) -> float:
    return statistics.median([await timed(work()) for _ in range(run.times(20))])


async def _sends(client: Client, producer: Producer, size: int) -> None:
    async with client.transaction() as txn:
        await producer.send_many([MESSAGE] * size, txn=txn)


async def _acks(run: Measurement, size: int) -> float:
    """Return the median seconds of transactions that acknowledge ``size`` messages, each by itself."""
    topic, took = await run.topic(), []
    producer = await run.client.producer(topic)
    async with await run.client.consumer(topic, "s", start="earliest") as consumer:
        for _ in range(run.times(20)):
            await producer.send_many([MESSAGE] * size)
            received: list[Message] = []
            while len(received) < size:
                received += await consumer.receive_many(messages_max=size - len(received), timeout_ms=60_000)
            begun = perf_counter()
            async with run.client.transaction() as txn:
                await consumer.ack(*received, txn=txn)
            took.append(perf_counter() - begun)
    return statistics.median(took)


async def bytes_on_disk(run: Measurement) -> Row:
    """
    The bytes that this process and its servers write to a disk for each message of 100 bytes.

    Linux counts them; it counts nothing for a directory in memory.
    """
    producer = await run.client.producer(await run.topic())
    await producer.send(MESSAGE)
    bulk, single = run.times(100_000), run.times(1_000)

    async def one_by_one() -> None:
        for _ in range(single):
            await producer.send(MESSAGE)

    async def in_transactions() -> None:
        for _ in range(single):
            await _sends(run.client, producer, 1)

    found = {}
    for name, messages, work in (
        ("send_many", bulk, lambda: producer.send_many([MESSAGE] * bulk)),
        ("single sends", single, one_by_one),
        ("a transaction each", single, in_transactions),
    ):
        before = bytes_written()
        await work()
        if written := bytes_written() - before:
            found[f"{name}, bytes/message"] = written / messages
    return found


def bytes_written() -> int:
    """Return how many bytes this process and those that it started have sent to disks; 0 where nothing counts them."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    total, family = 0, [os.getpid()]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
        with suppress(OSError):
            counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            total += int(counters["write_bytes"])
    return total


ROWS: tuple[Callable[[Measurement], Awaitable[Row]], ...] = (
    transactions_by_segments,
    transactions_by_clients,
    loops,
    handlers,
    plain_messages,
    visible,
    growth,
    bytes_on_disk,
)


async def measure(
    backend: Backend, scale: float, only: list[str], progress: Callable[[str], None], freezes: bool, found: Row
) -> None:
    """Measure one backend; ``found`` receives the figures of each row as soon as they are measured."""
    # The consumer that is measured acknowledges nothing.
    async with opened(backend.config("peers"), subscriptions={"unacknowledged_messages_max": 1_000_000}) as client:
        run = Measurement(client, scale, freezes)
        for row in ROWS:
            if not only or row.__name__ in only:
                progress(row.__name__)
                found |= await row(run)


def table(ours: dict[str, Row], peers: dict[str, Row]) -> Table:
    """Return one row for each figure, and one column for each store and peer."""
    columns = {**ours, **peers}
    shown = Table(title="Whole uses, ours and the peers' (see peers.toml)")
    shown.add_column("figure", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right")
    for name in dict.fromkeys(name for row in ours.values() for name in row):
        shown.add_row(name, *(_number(row.get(name)) for row in columns.values()))
    return shown


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def main() -> None:
    """Measure the chosen backends, one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=list(BACKENDS), action="append", help="may be repeated; default: all")
    parser.add_argument("--only", choices=[row.__name__ for row in ROWS], action="append", default=[])
    parser.add_argument("--quick", action="store_true", help="a tenth of each loop, for a first look")
    parser.add_argument("--directory", type=Path, help="the directory of the databases; default: a temporary one")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() before each measurement")
    parser.add_argument("--json", action="store_true", help="print our figures only, as JSON")
    arguments = parser.parse_args()
    # Without a terminal, such as into a file, the table is as wide as it needs.
    console = Console(stderr=arguments.json, width=None if sys.stdout.isatty() else FILE_WIDTH)
    ours: dict[str, Row] = {}
    failed = False
    with console.status("starting") as status:
        for name in arguments.backend or list(BACKENDS):
            scale = 0.1 if arguments.quick else 1.0

            def progress(step: str, name: str = name) -> None:
                status.update(f"{name}: {step}")

            # What was measured before is printed, too, if a store cannot start or fails.
            found = ours[name] = {}
            try:
                with (
                    tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
                    BACKENDS[name](Path(directory)) as backend,
                ):
                    asyncio.run(measure(backend, scale, arguments.only, progress, arguments.freeze, found))
            except Exception:
                failed = True
                print(f"{name} failed; its figures are those that were measured before:", file=sys.stderr)
                traceback.print_exc()
    if arguments.json:
        print(json.dumps(ours))
    else:
        peers = tomllib.loads(PEERS.read_text(encoding="utf-8"))
        console.print(table(ours, {name: peer["figures"] for name, peer in peers.items()}))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
