"""
A program that runs transactions without end, whatever fails meanwhile, and prints the outcome of each.

Each transaction takes links from its own topic, sends each one to ``left`` and ``right``, the next link to its own
topic again, and acknowledges what it took. So a chain is the numbers from 0 on without a gap; a link that is missing,
torn, or there twice shows, and so does a chain that stops.

    python chains.py work METADATA LEDGER NAME     one worker; ends, between two transactions, when its input ends
    python chains.py look METADATA LEDGER          follows both topics and says each link that it sees
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress

import txnframework
from txnframework.client import Client, Consumer, MessageID, Producer
from txnframework.errors import ReceiveTimeout, TransactionHasFailedOperations, TxnFrameworkError
from txnframework.model.transactions import State

CHAINS = ("a", "b", "c", "d")
"""Those of each worker."""
SESSION_TIMEOUT_MS = 4_000
CONNECT_TIMEOUT_MS = 2_000
LOOK_MS = 500
PAUSE_S = 0.05
TRANSACTION_TIMEOUT_MS = 5_000
"""Soon enough for a test: what a transaction holds that could not even be aborted is free after this."""
ABORTED_EVERY = 5
BOTH = ("left", "right")


def config(metadata: str, ledger: str) -> dict[str, dict[str, object]]:
    """Return what every client of a test is opened with."""
    options = {"session_ttl_ms": SESSION_TIMEOUT_MS, "connect_timeout_ms": CONNECT_TIMEOUT_MS}
    return {
        "metadata": {"url": metadata, "options": options},
        "ledger": {"url": ledger},
        "subscriptions": {"redelivery_delay_ms": 0},
    }


class Given(Exception):
    """The worker changes its mind, and aborts."""


class Worker:
    """Does one transaction after the other."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._begun = 0

    async def run(self, until: asyncio.Event) -> None:
        """Go on until the event is set."""
        topic = f"in-{self._name}"
        consumer = await self._client.consumer(topic, "work", start="earliest", stand_by=True)
        producers = [await self._client.producer(one) for one in (*BOTH, topic)]
        has_failed = False
        while not until.is_set():
            try:
                if has_failed:
                    await consumer.redeliver_unacknowledged()
                    has_failed = False
                await self._step(consumer, producers)
            except ReceiveTimeout:
                pass
            except TxnFrameworkError as error:
                # As an application would: whatever it was, the store knows what became of it.
                say("trouble", type(error).__name__, str(error).replace("\n", " "))
                await asyncio.sleep(PAUSE_S)
                has_failed = True
        await consumer.close()

    async def _step(self, consumer: Consumer, producers: list[Producer]) -> None:
        messages = await consumer.receive_many(messages_max=2, timeout_ms=LOOK_MS)
        txn = self._client.transaction(timeout_ms=TRANSACTION_TIMEOUT_MS)
        self._begun += 1
        try:
            async with txn:
                for message in messages:
                    chain, number, _ = message.value.decode().split(" ")
                    link = f"{chain} {number} {txn.id}"
                    following = f"{chain} {int(number) + 1} {txn.id}"
                    for producer, value in zip(producers, (link, link, following), strict=True):
                        await producer.send(value.encode(), txn=txn)
                await consumer.ack(*messages, txn=txn)
                if self._begun % ABORTED_EVERY == 0:
                    raise Given
        except Given:
            if txn.state is State.ABORTED:
                say("aborted", txn.id)
            else:
                # The abort failed; the context manager passes on what ended the block, not that.
                say("unsure", txn.id)
                say("trouble", "the abort was not confirmed")
            await consumer.redeliver_unacknowledged()
        except TransactionHasFailedOperations:
            say("aborted", txn.id)
            raise
        except TxnFrameworkError:
            with suppress(TxnFrameworkError):  # not begun, then
                say("unsure", txn.id)
            raise
        else:
            say("committed", txn.id)


async def work(metadata: str, ledger: str, name: str) -> None:
    """Run one worker until the input ends."""
    until = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A daemon, so that a worker that fails ends, and the test sees why.
    threading.Thread(target=_wait_for_the_end, args=(loop, until), daemon=True).start()
    async with txnframework.open(config(metadata, ledger)) as client:
        await Worker(client, name).run(until)
    say("done")


def _wait_for_the_end(loop: asyncio.AbstractEventLoop, until: asyncio.Event) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(until.set)


async def look(metadata: str, ledger: str) -> None:
    """Say what may be read, as it comes, until it is killed."""
    async with txnframework.open(config(metadata, ledger)) as client:

        async def follow(topic: str) -> None:
            last: MessageID | str = "earliest"
            while True:
                try:
                    async with await client.reader(topic, start=last, follow=True) as reader:
                        async for message in reader:
                            last = message.id
                            say(topic, message.value.decode())
                except TxnFrameworkError as error:
                    say("trouble", type(error).__name__, str(error).replace("\n", " "))
                    await asyncio.sleep(PAUSE_S)

        say("ready")
        await asyncio.gather(*map(follow, BOTH))


def say(*words: object) -> None:
    """Tell the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    command = {"work": work, "look": look}[sys.argv[1]]
    asyncio.run(command(*sys.argv[2:]))
