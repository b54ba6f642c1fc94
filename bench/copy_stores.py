"""
Copy a deployment between all kinds of stores, and check the copies: ``python bench/copy_stores.py``.

Each kind is copied to each kind, itself included, on real servers that are started for the run, or that the variables
of the tests name. The source has a topic of two segments with committed and aborted transactions, an open one with an
acknowledgment, and a subscription that is half done. ``txnframework copy`` runs as an operator runs it. The downtime is
the time from its start to its end, with the start of Python and the comparison of both deployments. Then:

* ``txnframework audit`` compares all counts and hashes again.
* The source must refuse to be opened.
* The copy must show the same messages with the same ids. Its open transaction commits, and is then read whole.
* ``txnframework copy --reopen`` opens the source again, for the next copy.

Pairs that cannot be copied have to be refused by one sentence, which the table shows. The exit code is 1 if a copy
differs, or if a pair is refused that should not be, or copied that should be refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import txnframework
from txnframework import Client, State
from txnframework.errors import DeploymentClosed

ORDERS, BILLING = "orders", "billing"
TOGETHER = 100
"""Each transaction sends so many messages."""
ABORTED_EVERY = 10
LONG_MS = 3_600_000
REFUSED = {"Memory": "other processes", "Notebook": "does not support it"}
"""Kinds that cannot be copied from or to, and what the refusal says. The notebook is the store of the tutorial."""


@dataclass
class Places:
    """Where new deployments are made; the servers start when they are needed first."""

    folder: Path
    stack: ExitStack
    kinds: dict[str, Callable[[], tuple[str, str]]] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {
            "SQLite": lambda: (self.file(),) * 2,
            "PostgreSQL": lambda: (self.database(),) * 2,
            "ZooKeeper + PostgreSQL": lambda: (self.znode(), self.database()),
            "NATS": lambda: (self.streams(),) * 2,
            "Memory": lambda: (f"memory://{secrets.token_hex(4)}",) * 2,
            "Notebook": lambda: (f"notebook://{self.folder}/{secrets.token_hex(4)}.jsonl", self.file()),
        }

    def file(self) -> str:
        return f"sqlite:///{self.folder}/{secrets.token_hex(4)}.db"

    def database(self) -> str:
        from txnframework_sql.testing.servers.databases import fresh_database

        return self.stack.enter_context(fresh_database())

    def znode(self) -> str:
        from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts

        return f"zookeeper://{shared_hosts()}/copies/{secrets.token_hex(8)}"

    def streams(self) -> str:
        from txnframework_nats.testing.servers.nats import shared_hosts

        return f"nats://{shared_hosts()}/copies-{secrets.token_hex(8)}"

    def make(self, kind: str) -> Path:
        """Return the configuration file of a new deployment."""
        metadata, ledger = self.kinds[kind]()
        file = self.folder / f"{secrets.token_hex(4)}.toml"
        file.write_text(f'[metadata]\nurl = "{metadata}"\n[ledger]\nurl = "{ledger}"\n')
        return file


@dataclass(frozen=True)
class Contents:
    """What a copy must show: the messages with their ids, and the messages of the transaction that is open."""

    messages: list[tuple[str, bytes]]
    open_txn: str
    of_open_txn: set[bytes]


async def fill(client: Client, messages: int) -> Contents:
    await client.create_topic(ORDERS, segments=2)
    await client.subscribe(ORDERS, BILLING, start="earliest")
    producer = await client.producer(ORDERS, name="shop")

    async def send(prefix: str, txn: txnframework.Transaction) -> set[bytes]:
        values = [f"{prefix}.{number}".encode() for number in range(TOGETHER)]
        await asyncio.gather(*(producer.send(value, key=value[-1:], txn=txn) for value in values))
        return set(values)

    for number in range(max(2, messages // TOGETHER)):
        txn = client.transaction()
        await txn.begin()
        aborts = number % ABORTED_EVERY == 1
        await send(f"aborted {number}" if aborts else f"committed {number}", txn)
        await (txn.abort() if aborts else txn.commit())
    async with await client.consumer(ORDERS, BILLING) as consumer:
        received = await consumer.receive_many(messages_max=max(2, messages // 2), timeout_ms=60_000)
        await consumer.ack(*received[1:])
        opened = client.transaction(outlives_client=True, timeout_ms=LONG_MS)
        await opened.begin()
        await consumer.ack(received[0], txn=opened)
        of_open_txn = await send("open", opened)
    return Contents(await read(client), str(opened.id), of_open_txn)


async def read(client: Client) -> list[tuple[str, bytes]]:
    """Return the ids and values of the messages, sorted: readers of two segments have no order between them."""
    async with await client.reader(ORDERS) as reader:
        return sorted([(str(message.id), message.value or b"") async for message in reader])


async def faults_of(source: Path, target: Path, contents: Contents) -> list[str]:
    """Return what is wrong with a copy."""
    found = []
    try:
        async with txnframework.open(source):
            found.append("the source can still be opened")
    except DeploymentClosed:
        pass
    async with txnframework.open(target) as client:
        if await read(client) != contents.messages:
            found.append("the copy shows other messages")
        if await client.outcome(contents.open_txn) is not State.OPEN:
            found.append("the open transaction is not open in the copy")
        await client.commit(contents.open_txn)
        added = {value for _, value in await read(client)} - {value for _, value in contents.messages}
        if added != contents.of_open_txn:
            found.append("the open transaction was committed in the copy, and is not whole")
    return found


def command(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "txnframework", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Row:
    """One pair: its figures, or why it was refused; ``is_wrong``: this should be otherwise."""

    source: str
    target: str
    text: str
    is_wrong: bool = False


def copy(kinds: tuple[str, str], source: Path, target: Path, contents: Contents | None) -> Row:
    """Copy one pair, and check the copy."""
    expected = next((REFUSED[kind] for kind in kinds if kind in REFUSED), None)
    began = time.monotonic()
    status, out, error = command("copy", "--config", source, "--to", target, "--yes", "--output", "json")
    seconds = time.monotonic() - began
    if status:
        # Warnings about a server that is not synced may come before it.
        sentence = error.strip().rpartition("Error: ")[2]
        is_sentence = expected is not None and expected in sentence and len(sentence.splitlines()) == 1
        return Row(*kinds, f"refused: {sentence}", not is_sentence)
    if expected is not None or contents is None:
        return Row(*kinds, "WRONG: copied, and should be refused", is_wrong=True)
    report = json.loads(out)
    audited = json.loads(command("audit", "--config", source, "--to", target, "--output", "json")[1])
    faults = asyncio.run(faults_of(source, target, contents))
    if audited["differing"] or audited["entries"] != report["entries"]:
        faults.append(f"{audited['differing']} differences")
    if command("copy", "--config", source, "--reopen", "--yes")[0]:
        faults.append("the source cannot be opened again")
    if faults:
        return Row(*kinds, f"WRONG: {', '.join(faults)}", is_wrong=True)
    messages = audited["messages"]
    return Row(
        *kinds,
        f"{audited['ledgers']} ledgers, {messages:,} messages, {audited['records']:,} records"
        f" | {seconds:.1f} s | {messages / seconds:,.0f}/s | no differences",
    )


async def filled(source: Path, messages: int) -> Contents:
    async with txnframework.open(source) as client:
        return await fill(client, messages)


@contextmanager
def places() -> Iterator[Places]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Places(Path(folder), stack)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="messages of each source; default: 100000")
    parser.add_argument("--kinds", nargs="+", help="only these kinds of stores, in all pairs")
    given = parser.parse_args()
    wrong = False
    with places() as found:
        if given.kinds and (unknown := {*given.kinds} - {*found.kinds}):
            parser.error(f"unknown kinds {sorted(unknown)}; there are {', '.join(found.kinds)}")
        kinds = given.kinds or list(found.kinds)
        print("| from | to | copied | downtime | rate | audit |\n|---|---|---|---|---|---|", flush=True)
        for one in kinds:
            source = found.make(one)
            contents = None if one in REFUSED else asyncio.run(filled(source, given.messages))
            for other in kinds:
                row = copy((one, other), source, found.make(other), contents)
                wrong |= row.is_wrong
                print(f"| {row.source} | {row.target} | {row.text} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
