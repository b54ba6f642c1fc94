"""
Measure the gateway for Pulsar clients: ``python bench/pulsar_gateway.py [--beside FOLDER] [--messages N]``.

Messages are sent and received by Pulsar's own client for Python. It has no transactions, so these are measured by
commands of the protocol: a transaction begins, sends a message and commits. The gateway is a process of its own, on a
SQLite database in a temporary folder, and everything runs on this machine. With ``--beside``, a broker of Apache Pulsar
is measured in turn with the gateway; its program is kept in the folder. Both sync to disk what they confirm.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import pulsar
from pulsar_broker import pulsar_broker

from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.frames import SIZE_BYTES, command_frame, message_frame, parse_frame, size_of

TOPIC = "persistent://public/default/bench"
MESSAGE = b"x" * 100
FRAME_BYTES_MAX = 8 * 1024 * 1024
TIMEOUT_S = 120
PAGE_BYTES = 4096
CLIENTS = (1, 16, 64)


@contextmanager
def gateway() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a gateway, and yield its URL and its process."""
    command = [sys.executable, "-m", "txnframework", "serve", "pulsar", "--listen", "127.0.0.1:0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r"pulsar://\S+", process.stdout.readline())
            assert found is not None, "the gateway did not start"
            yield found[0], process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


class Connection:
    """A connection that sends one command at a time, and waits for its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)

    @classmethod
    async def open(cls, url: str) -> Connection:
        host, port = url.rpartition("/")[2].split(":")
        connection = cls(*await asyncio.open_connection(host, int(port)))
        await connection.ask(pb.Command(connect=pb.Connect(client_version="bench", protocol_version=19)), "connected")
        return connection

    def number(self) -> int:
        return next(self._numbers)

    async def ask(self, command: pb.Command, answer: str) -> pb.Command:
        return await self._answered(command_frame(command), answer)

    async def send(self, command: pb.Send) -> None:
        metadata = pb.MessageMetadata(producer_name="bench", sequence_id=command.sequence_id, publish_time=1)
        await self._answered(message_frame(pb.Command(send=command), metadata, MESSAGE), "send_receipt")

    async def _answered(self, frame: bytes, answer: str) -> pb.Command:
        self._writer.write(frame)
        while True:
            size = size_of(await self._reader.readexactly(SIZE_BYTES), FRAME_BYTES_MAX)
            command = parse_frame(await self._reader.readexactly(size)).command
            if command.HasField("ping"):
                self._writer.write(command_frame(pb.Command(pong=pb.Pong())))
            if command.HasField("error"):
                raise RuntimeError(command.error.message)
            if command.HasField(answer):  # type: ignore[arg-type]
                return command

    async def produce(self) -> None:
        opening = pb.Producer(topic=TOPIC, producer_id=1, request_id=self.number())
        await self.ask(pb.Command(producer=opening), "producer_success")

    async def transact(self, sequence_id: int) -> None:
        begin = pb.NewTxn(request_id=self.number(), timeout_ms=60_000, tc_id=0)
        begun = (await self.ask(pb.Command(new_txn=begin), "new_txn_response")).new_txn_response
        txn = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
        await self.send(pb.Send(producer_id=1, sequence_id=sequence_id, **txn))
        end = pb.EndTxn(request_id=self.number(), txn_action=pb.EndTxn.COMMIT, **txn)
        await self.ask(pb.Command(end_txn=end), "end_txn_response")

    def close(self) -> None:
        self._writer.close()


def rate(count: int, work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return count / (perf_counter() - began)


def message_rates(url: str, count: int) -> dict[str, float]:
    """Return the rates of Pulsar's client for Python, in messages per second."""
    quiet = logging.getLogger("bench")
    quiet.setLevel(logging.CRITICAL)
    client = pulsar.Client(url, logger=quiet)
    consumer = client.subscribe(TOPIC, "bench", pulsar.ConsumerType.Shared)

    def one_by_one() -> None:
        for _ in range(count // 10):
            single.send(MESSAGE)

    def all_at_once(producer: pulsar.Producer) -> None:
        for _ in range(count):
            producer.send_async(MESSAGE, None)
        producer.flush()

    def receive() -> None:
        for _ in range(2 * count + count // 10):
            consumer.acknowledge(consumer.receive(TIMEOUT_S * 1_000))

    options = {"block_if_queue_full": True, "max_pending_messages": 1_000}
    single = client.create_producer(TOPIC, batching_enabled=False, **options)
    batching = client.create_producer(TOPIC, batching_enabled=True, **options)
    rates = {
        "messages/s sent one at a time": rate(count // 10, one_by_one),
        "messages/s sent, 1,000 in flight": rate(count, lambda: all_at_once(single)),
        "messages/s sent, 1,000 in flight, in batches": rate(count, lambda: all_at_once(batching)),
        "messages/s received and acknowledged": rate(2 * count + count // 10, receive),
    }
    client.close()
    return rates


async def transaction_rates(url: str, count: int) -> dict[str, float]:
    """Return the rates of transactions that send one message each."""
    rates = {}
    for clients in CLIENTS:
        connections = [await Connection.open(url) for _ in range(clients)]
        await gather(one.produce() for one in connections)
        each = max(1, count // clients)

        async def run(connection: Connection, each: int = each) -> None:
            for number in range(each):
                await connection.transact(number)

        began = perf_counter()
        await gather(run(one) for one in connections)
        rates[f"transactions/s of {clients} client(s)"] = clients * each / (perf_counter() - began)
        for one in connections:
            one.close()
    return rates


async def connection_kib(url: str, process: subprocess.Popen[str], count: int) -> dict[str, float]:
    """Return what a connection takes in the gateway."""
    before = resident_bytes(process)
    connections = [await Connection.open(url) for _ in range(count)]
    connected = resident_bytes(process)
    for one in connections:
        await one.produce()
    producing = resident_bytes(process)
    for one in connections:
        one.close()
    return {
        f"KiB of a connection, of {count:,}": (connected - before) / count / 1_024,
        "KiB of a connection with a producer": (producing - before) / count / 1_024,
    }


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def gather(works: Iterator[Awaitable[None]]) -> None:
    await asyncio.gather(*works)


def rates_at(url: str, chosen: argparse.Namespace) -> dict[str, float]:
    return message_rates(url, chosen.messages) | asyncio.run(transaction_rates(url, chosen.transactions))


def of_gateway(chosen: argparse.Namespace) -> dict[str, float]:
    with gateway() as (url, process):
        # First, as memory that was used before is used again.
        memory = asyncio.run(connection_kib(url, process, chosen.connections))
        return rates_at(url, chosen) | memory


def of_broker(chosen: argparse.Namespace) -> dict[str, float]:
    with pulsar_broker(chosen.beside) as url:
        return rates_at(url, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the gateway for Pulsar clients.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="also measure a broker, kept in this folder")
    chosen = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"gateway": []}
    if chosen.beside is not None:
        found["broker"] = []
    for number in range(chosen.rounds):
        print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr)
        found["gateway"].append(of_gateway(chosen))
        if chosen.beside is not None:
            found["broker"].append(of_broker(chosen))
    print(f"{'median':46}" + "".join(f"{name:>12}" for name in found) + (f"{'ratio':>8}" if len(found) > 1 else ""))
    for what in found["gateway"][0]:
        medians = [median(one[what] for one in rounds) for rounds in found.values() if what in rounds[0]]
        ratio = f"{medians[0] / medians[1]:8.2f}" if len(medians) > 1 else ""
        print(f"{what:46}" + "".join(f"{one:12,.1f}" for one in medians) + ratio)


if __name__ == "__main__":
    main()
