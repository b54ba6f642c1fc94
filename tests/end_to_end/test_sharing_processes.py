"""Real processes that divide the segments of a topic: they come, one is killed, and the topic is split under them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from txnframework import Client
from txnframework.broker import dispatching_leases
from txnframework.model.names import TopicName
from txnframework.model.paths import leases_range

if TYPE_CHECKING:
    from conftest import Stores

MESSAGES = 300
SEGMENTS = 8
SESSION_TTL_MS = 1_000

WORKER = """
import asyncio, importlib, json, sys
import txnframework
from txnframework.errors import Conflict, NotFound
from txnframework.plugin import load_plugins

config, names, own = json.loads(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].encode()

async def main():
    registry = load_plugins([importlib.import_module(name + ".plugin") for name in names])
    async with txnframework.open(config, registry=registry) as client:
        consumer = await client.consumer("in", "work", type="key_shared", start="earliest")
        producer = await client.producer("out")
        while True:
            messages = await consumer.receive_many(messages_max=10)
            try:
                async with client.transaction() as txn:
                    await producer.send_many([own + b" " + message.value for message in messages], txn=txn)
                    await consumer.ack(*messages, txn=txn)
            except (Conflict, NotFound):
                await consumer.redeliver_unacknowledged()

asyncio.run(main())
"""


def test_four_processes(shared: Stores) -> None:
    """The division is even after each change; each process does its share, and every message has one effect."""
    stores = shared
    stores.options = {"session_ttl_ms": SESSION_TTL_MS}
    workers = {}

    async def work() -> None:
        async with stores.open() as client:
            await client.create_topic("in", segments=SEGMENTS)
            await client.create_topic("out")
            for number in range(4):
                workers[number] = _start(stores, number)
            sent = 0
            for _ in range(10):  # a worker that is held up for longer than its session lives does nothing meanwhile
                await _divided(client, lambda counts: sorted(counts) == [2, 2, 2, 2])
                await _send(client, range(sent, sent + MESSAGES))
                sent += MESSAGES
                shares = Counter(value.split()[0] for value in (await _done(client, sent))[-MESSAGES:])
                if len(shares) == 4 and min(shares.values()) > MESSAGES // 16:
                    break
            else:
                pytest.fail(f"the last shares of the work: {shares}")
            workers[0].kill()
            await _send(client, range(sent, sent + MESSAGES))
            await _divided(client, lambda counts: sorted(counts) == [2, 3, 3])
            workers[4] = _start(stores, 4)
            await client.split("in", 0)
            await _divided(client, lambda counts: sorted(counts) == [2, 2, 2, 3])
            await _send(client, range(sent + MESSAGES, sent + 2 * MESSAGES))
            done = await _done(client, sent + 2 * MESSAGES)
            assert Counter(int(value.split()[1]) for value in done) == Counter(range(sent + 2 * MESSAGES))
            assert b"4" in {value.split()[0] for value in done}

    try:
        stores.run(work())
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


async def _divided(client: Client, is_wanted: Callable[[list[int]], bool]) -> None:
    """Return when the numbers of segments of the processes are as wanted."""
    prefix = dispatching_leases(TopicName("topic", "public", "default", "in"), "work")
    watch = await client.host.metadata.watch(leases_range(prefix))
    try:
        while not is_wanted(list(Counter((await client.dispatchers("in", "work")).values()).values())):
            await watch.changed()
    finally:
        await watch.close()


async def _send(client: Client, numbers: range) -> None:
    producer = await client.producer("in")
    for number in numbers:
        await producer.send(b"%d" % number, key=b"key %d" % (number % 101))


async def _done(client: Client, messages: int) -> list[bytes]:
    """Return the effects of so many messages, when they can be read."""
    async with await client.reader("out", follow=True) as reader:
        return [(await anext(aiter(reader))).value for _ in range(messages)]


def _start(stores: Stores, number: int) -> subprocess.Popen[str]:
    plugins = "txnframework_sql,txnframework_metadata,txnframework_dispatchers"
    if stores.url.startswith("zookeeper:"):
        plugins += ",txnframework_zookeeper"
    arguments = [sys.executable, "-c", WORKER, json.dumps(stores.config()), plugins, str(number)]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8")
