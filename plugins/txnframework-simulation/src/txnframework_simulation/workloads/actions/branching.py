"""Branches: several attempts write in one transaction, and its end says which of them count."""

from __future__ import annotations

from contextlib import suppress

from txnframework.client import JoinedTransaction
from txnframework.errors import TxnFrameworkError
from txnframework_simulation.workloads.actions.surroundings import Surroundings

ATTEMPTS_MAX = 3
ATTEMPT = "/"
"""Stands in a value between the piece of work, the number of the attempt, and the rest."""


class Branching(Surroundings):
    """What an actor does in branches; those of the log-driven family's topics are left alone: it has none."""

    async def branches(self) -> None:
        """Let several attempts write the same piece of work, of which one counts; losers go on after the end."""
        if "segment" not in self.domains:
            return
        txn = await self.begin("segment")
        work = self.recorded.unique()
        finished: list[int] = []
        attempts: list[JoinedTransaction] = []
        for number in range(self.chance.randint(1, ATTEMPTS_MAX)):
            attempt = await self.recorded.join(str(txn.id))
            attempts.append(attempt)
            with suppress(TxnFrameworkError):
                await self._attempt(f"{work}{ATTEMPT}{number}", attempt)
                if self.part.likely(0.7):
                    finished.append(await attempt.finish())
        await self.end(txn, tuple(self.chance.sample(finished, min(1, len(finished)))))
        for number, attempt in enumerate(attempts):
            if self.part.likely(0.3):
                with suppress(TxnFrameworkError):
                    await self._attempt(f"{work}{ATTEMPT}{number}{ATTEMPT}late", attempt)

    async def _attempt(self, work: str, attempt: JoinedTransaction) -> None:
        for number in range(self.chance.randint(1, 2)):
            producer = await self.recorded.producer(self.chance.choice(self.domains["segment"]))
            await producer.send(f"{work}{ATTEMPT}{number}", key=self.key(), txn=attempt)
