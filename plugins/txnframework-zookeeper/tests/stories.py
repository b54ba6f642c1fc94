"""Several processes use one store while a test disturbs its servers; the invariants that hold afterwards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chains

import txnframework
from txnframework.model.transactions import State

WORKERS = ("one", "two")
PATIENCE_S = 240.0


class Told:
    """A process, and the lines that it has said."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[list[str]] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, chains.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def count(self, word: str) -> int:
        """Return how many lines began with a word."""
        return sum(line[0] == word for line in self.lines)

    def said(self, word: str) -> list[str]:
        """Return what followed a word."""
        return [" ".join(line[1:]) for line in self.lines if line[0] == word]

    def wait_for(self, word: str, wanted: int) -> None:
        """Return when it has said so many lines that begin with a word, since it was started."""
        with self._news:
            found = self._news.wait_for(
                lambda: self.count(word) >= wanted or self.process.poll() is not None, PATIENCE_S
            )
        assert found, f"not {wanted} times {word!r} after {PATIENCE_S} s; the last it said: {self.lines[-3:]}"
        assert self.count(word) >= wanted, f"it ended: {self.lines[-3:]}"

    def finish(self) -> None:
        """Let it come to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self._listening.join()
        assert self.process.returncode == 0, self.lines[-3:]

    def kill(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        self.process.wait()
        self._listening.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.split())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Story:
    """Workers that run transactions, and one process that looks."""

    def __init__(self, metadata: str, ledger: str) -> None:
        self._stores = metadata, ledger
        self.workers: list[Told] = []
        self.looker: Told | None = None

    async def prepare(self) -> None:
        """Make the topics, and the first link of each chain."""
        async with txnframework.open(chains.config(*self._stores)) as client:
            for topic in (*chains.BOTH, *(f"in-{name}" for name in WORKERS)):
                await client.create_topic(topic)
            for name in WORKERS:
                async with await client.producer(f"in-{name}") as producer:
                    await producer.send_many([f"{name}-{chain} 0 -".encode() for chain in chains.CHAINS])

    def start(self) -> None:
        """Start everyone, and return when the one who looks is ready and each worker has committed something."""
        self.looker = Told("look", *self._stores)
        self.workers += [Told("work", *self._stores, name) for name in WORKERS]
        self.go_on(1)
        self.looker.wait_for("ready", 1)

    def go_on(self, transactions: int) -> float:
        """Return, when each worker has committed so many more transactions, how long that took."""
        begun = time.monotonic()
        wanted = [worker.count("committed") + transactions for worker in self.workers]
        for worker, count in zip(self.workers, wanted, strict=True):
            worker.wait_for("committed", count)
        return time.monotonic() - begun

    def troubled(self) -> None:
        """Return when each worker has been told that something failed."""
        for worker in self.workers:
            worker.wait_for("trouble", 1)

    def finish(self) -> None:
        """Let the workers end, check everything, and what the looker has seen by then."""
        for worker in self.workers:
            worker.finish()
        asyncio.run(self._check())

    def kill(self) -> None:
        """Leave no process behind."""
        for process in (*self.workers, self.looker):
            if process is not None:
                process.kill()

    async def _check(self) -> None:
        assert self.looker is not None
        async with txnframework.open(chains.config(*self._stores)) as client:
            read = {}
            for topic in chains.BOTH:
                async with await client.reader(topic) as reader:
                    read[topic] = [message.value.decode() async for message in reader]
            visible = {link.split(" ")[2] for link in read["left"]}
            for worker in self.workers:
                for txn_id in (*worker.said("committed"), *worker.said("aborted"), *worker.said("unsure")):
                    is_committed = await client.outcome(txn_id) is State.COMMITTED
                    # One that took nothing but links of chains has sent some.
                    assert is_committed == (txn_id in visible), f"{txn_id} is visible or not as it should not be"
                assert visible >= set(worker.said("committed"))
                assert not visible & set(worker.said("aborted"))
        assert Counter(read["left"]) == Counter(read["right"]), "a transaction is torn"
        check_chains(read["left"])
        for topic in chains.BOTH:
            self._wait_until(lambda topic=topic: len(self.looker.said(topic)) >= len(read[topic]))
            assert self.looker.said(topic) == read[topic], "who looked all the time has seen something else"

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until, "who looks has stood still"
            time.sleep(0.05)


def check_chains(links: list[str]) -> None:
    """Check that each chain's numbers are there, each once: nothing acknowledged or sent was lost, or came twice."""
    found: dict[str, list[int]] = {}
    for link in links:
        chain, number, _ = link.split(" ")
        found.setdefault(chain, []).append(int(number))
    assert len(found) == len(WORKERS) * len(chains.CHAINS)
    for chain, numbers in found.items():
        assert sorted(numbers) == list(range(len(numbers))), f"chain {chain}"


@contextmanager
def story(metadata: str, ledger_directory: Path) -> Iterator[Story]:
    """Prepare a story, and leave nothing of it."""
    told = Story(metadata, f"sqlite:///{ledger_directory}/ledgers.db")
    try:
        asyncio.run(told.prepare())
        told.start()
        yield told
    finally:
        told.kill()
