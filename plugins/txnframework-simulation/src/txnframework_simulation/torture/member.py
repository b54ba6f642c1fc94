"""A slot for one process, which is restarted after a kill, behind proxies that can disconnect it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from txnframework.testing.servers.proxy import Proxy
from txnframework_simulation.torture.assignment import Assignment, addresses_of, through
from txnframework_simulation.torture.steps import step_file

_LOG_BYTES_SHOWN = 3_000
_HEAD_BYTES_MAX = 200
"""A history file that is larger than this contains at least one event."""


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the stores are."""

    metadata: str
    ledger: str


class Member:
    """
    The process with one number, and its replacements after kills.

    ``failures``: processes that ended without being killed, with the end of their output. ``steps``: how many processes
    have killed themselves at each step of a transaction.
    """

    def __init__(self, number: int, seed: int, directory: Path, urls: Urls) -> None:
        self.number = number
        self.proxies: dict[tuple[str, int], Proxy] = {}
        self.lives = 0
        self.failures: list[str] = []
        self.steps: Counter[str] = Counter()
        self._seed = seed
        self._directory = directory
        self._urls = urls
        self._process: asyncio.subprocess.Process | None = None
        self._stack = AsyncExitStack()
        self._watching: asyncio.Task[None] | None = None
        self._ending = False
        self._killed = False

    @property
    def name(self) -> str:
        """The name of the current process."""
        return f"p{self.number}-{self.lives}"

    @property
    def works(self) -> bool:
        """Whether the current process has recorded an operation."""
        return self._history.exists() and self._history.stat().st_size > _HEAD_BYTES_MAX

    async def __aenter__(self) -> Self:
        for url in (self._urls.metadata, self._urls.ledger):
            for address in addresses_of(url):
                if address not in self.proxies:
                    self.proxies[address] = await self._stack.enter_async_context(Proxy(address))
        await self._start()
        self._watching = asyncio.create_task(self._start_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        if self._watching is not None:
            self._watching.cancel()
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        await self._stack.aclose()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the current process, if it runs."""
        if number is signal.SIGKILL:
            self._killed = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, patience_seconds: float) -> bool:
        """
        Ask the process to finish and close; return whether it ended in time.

        Otherwise its log shows where it waits.
        """
        self._ending = True
        process = self._process
        if process is None or process.returncode is not None:
            return True
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_seconds)
            self._judge(process.returncode)
            return True
        self.signal(signal.SIGUSR1)
        await asyncio.sleep(1)
        self.signal(signal.SIGKILL)
        await process.wait()
        return False

    async def _start_again(self) -> None:
        while not self._ending:
            assert self._process is not None
            await self._process.wait()
            if self._ending:
                return
            # A process that ends by itself before it is asked to has failed.
            self._judge(self._process.returncode or 1)
            await self._start()

    def _judge(self, returncode: int | None) -> None:
        """Record how a process ended."""
        if not returncode or self._killed:
            return
        step = step_file(self._history)
        if returncode == -signal.SIGKILL and step.exists():
            self.steps[step.read_text(encoding="ascii")] += 1
        else:
            self.failures.append(self._last_words())

    async def _start(self) -> None:
        self.lives += 1
        self._killed = False
        assignment = Assignment(
            name=self.name,
            place=self.number,
            seed=self._seed * 1_000 + self.lives,
            history=str(self._history),
            metadata=self._through_proxy(self._urls.metadata),
            ledger=self._through_proxy(self._urls.ledger),
        )
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "txnframework_simulation.torture.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        assert self._process.stdin is not None
        # Sent through standard input, not in a file or an argument, because URLs may contain passwords.
        self._process.stdin.write(msgspec.json.encode(assignment) + b"\n")

    @property
    def _history(self) -> Path:
        return self._directory / "parts" / f"{self.name}.jsonl"

    @property
    def _log(self) -> Path:
        return self._directory / "logs" / f"{self.name}.log"

    def _last_words(self) -> str:
        printed = self._log.read_text(errors="replace")[-_LOG_BYTES_SHOWN:].strip()
        return f"process {self.name} ended unexpectedly: {printed or 'no output'}"

    def _through_proxy(self, url: str) -> str:
        addresses = addresses_of(url)
        return through(url, [self.proxies[address].address for address in addresses]) if addresses else url
