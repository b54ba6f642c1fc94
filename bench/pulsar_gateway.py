"""
Measure the gateway for Pulsar clients: ``python bench/pulsar_gateway.py [--messages N] [--connections N]``.

Messages are sent and received by Pulsar's own client for Python. It has no transactions, so these are measured by
commands of the protocol: a transaction begins, sends a message and commits. The gateway is a process of its own, on a
SQLite database in a temporary folder, and everything runs on this machine.
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
from time import perf_counter

import pulsar

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


def messages(url: str, count: int) -> None:
    """Print the rates of Pulsar's client for Python."""
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
    print(f"send, one at a time             {rate(count // 10, one_by_one):10,.0f} messages/s")
    print(f"send, 1,000 in flight           {rate(count, lambda: all_at_once(single)):10,.0f} messages/s")
    print(f"send, 1,000 in flight, batches  {rate(count, lambda: all_at_once(batching)):10,.0f} messages/s")
    print(f"receive and acknowledge         {rate(2 * count + count // 10, receive):10,.0f} messages/s")
    client.close()


async def transactions(url: str, count: int) -> None:
    """Print the rates of transactions that send one message each."""
    for clients in CLIENTS:
        connections = [await Connection.open(url) for _ in range(clients)]
        await gather(one.produce() for one in connections)
        each = max(1, count // clients)

        async def run(connection: Connection, each: int = each) -> None:
            for number in range(each):
                await connection.transact(number)

        began = perf_counter()
        await gather(run(one) for one in connections)
        found = clients * each / (perf_counter() - began)
        print(f"transactions, {clients:2} clients        {found:10,.0f} transactions/s")
        for one in connections:
            one.close()


async def memory(url: str, process: subprocess.Popen[str], count: int) -> None:
    """Print what a connection takes in the gateway."""
    before = resident_bytes(process)
    connections = [await Connection.open(url) for _ in range(count)]
    connected = resident_bytes(process)
    for one in connections:
        await one.produce()
    producing = resident_bytes(process)
    print(f"memory of a connection          {(connected - before) / count / 1_024:10,.1f} KiB ({count:,} connections)")
    print(f"  with a producer               {(producing - before) / count / 1_024:10,.1f} KiB")
    for one in connections:
        one.close()


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def gather(works: Iterator[Awaitable[None]]) -> None:
    await asyncio.gather(*works)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the gateway for Pulsar clients.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=1_000)
    chosen = parser.parse_args()
    began = perf_counter()
    with gateway() as (url, process):
        print(f"the gateway started in          {perf_counter() - began:10,.1f} s")
        asyncio.run(memory(url, process, chosen.connections))  # first, as memory that was used before is used again
        messages(url, chosen.messages)
        asyncio.run(transactions(url, chosen.transactions))


if __name__ == "__main__":
    main()
