"""What happens to processes: they are killed and paused, and their connections cut, held up and half closed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from txnframework.testing.servers.proxy import Proxy, Side
from txnframework.testing.torture.member import Member

BETWEEN_SECONDS = (0.4, 2.5)
PAUSE_SECONDS = (0.5, 14.0)
"""From shorter than any timeout to longer than sessions live."""
CUT_SECONDS = (0.1, 5.0)
DELAY_MS = (5, 400)

Misfortune = Callable[[Member], Awaitable[None]]


class Misfortunes:
    """
    Draws by a seed what happens to whom; ``counts`` says how often each happened, ``disconnections`` to how many
    connections.

    What was done is appended to a file, by the clock of the histories.
    """

    def __init__(self, members: Sequence[Member], seed: int, file: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.disconnections = 0
        self._members = members
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._file = file
        self._suffering: dict[int, asyncio.Task[None]] = {}

    def summary(self) -> dict[str, int]:
        """Return the counts as they are told."""
        to_processes = {"kills": self.counts["kill"], "pauses": self.counts["pause"]}
        others = sum(self.counts.values()) - sum(to_processes.values())
        return to_processes | {"network misfortunes": others, "connections cut": self.disconnections}

    async def go_on(self) -> None:
        """Let one misfortune come after the other, until this is cancelled; those under way are then over."""
        try:
            while True:
                await asyncio.sleep(self._chance.uniform(*BETWEEN_SECONDS))
                free = [one for one in self._members if one.works and one.number not in self._suffering]
                if free:
                    self._strike(self._chance.choice(free))
        finally:
            for task in tuple(self._suffering.values()):
                task.cancel()
            await asyncio.gather(*self._suffering.values(), return_exceptions=True)

    def _strike(self, member: Member) -> None:
        choices: dict[Misfortune, int] = {self.kill: 4, self.pause: 3}
        if member.proxies:
            choices |= {self.reset: 3, self.cut: 2, self.stall: 2, self.delay: 1, self.half_close: 1, self.mute: 2}
        (chosen,) = self._chance.choices(list(choices), list(choices.values()))
        name = getattr(chosen, "__name__", "")
        self.counts[name] += 1
        self._note(name, member)
        task = asyncio.create_task(self._suffer(chosen, member))
        self._suffering[member.number] = task
        task.add_done_callback(lambda _: self._suffering.pop(member.number, None))

    async def _suffer(self, misfortune: Misfortune, member: Member) -> None:
        try:
            await misfortune(member)
        finally:
            member.signal(signal.SIGCONT)
            for proxy in member.proxies.values():
                proxy.restore()
            self._note("over", member)

    # -- to the process -------------------------------------------------------------------------------

    async def kill(self, member: Member) -> None:
        """End it, in the middle of whatever it does."""
        member.signal(signal.SIGKILL)
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))

    async def pause(self, member: Member) -> None:
        """Let it stand still, so that others take over what it had, and then go on as if nothing had happened."""
        member.signal(signal.SIGSTOP)
        await self._wait(PAUSE_SECONDS)

    # -- to its connections ---------------------------------------------------------------------------

    async def reset(self, member: Member) -> None:
        """End its connections; it may connect again at once."""
        self._cut_off(member, Proxy.reset_connections)

    async def cut(self, member: Member) -> None:
        """End its connections, and let it have no others for a while."""
        self._cut_off(member, Proxy.cut)
        await self._wait(CUT_SECONDS)

    async def stall(self, member: Member) -> None:
        """Let nothing pass for a while; then all of it arrives."""
        for proxy in member.proxies.values():
            proxy.stall()
        await self._wait(CUT_SECONDS)

    async def delay(self, member: Member) -> None:
        """Let everything take longer."""
        for proxy in member.proxies.values():
            proxy.delay(self._chance.randint(*DELAY_MS))
        await self._wait(CUT_SECONDS)

    async def half_close(self, member: Member) -> None:
        """Tell one side that the other sends nothing more."""
        sender = self._chance.choice(tuple(Side))
        self._cut_off(member, lambda proxy: proxy.half_close(sender))
        await self._wait(CUT_SECONDS)

    async def mute(self, member: Member) -> None:
        """Lose replies, so that nobody knows whether what was asked for was done; then the connections end."""
        for proxy in member.proxies.values():
            proxy.drop(Side.SERVER)
        await self._wait((0.05, 2.0))
        self._cut_off(member, Proxy.reset_connections)

    def _cut_off(self, member: Member, how: Callable[[Proxy], None]) -> None:
        for proxy in member.proxies.values():
            self.disconnections += proxy.connections
            how(proxy)

    async def _wait(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*seconds))

    def _note(self, what: str, member: Member) -> None:
        with self._file.open("ab") as file:
            said = {"at_ns": time.monotonic_ns(), "process": member.name, "misfortune": what}
            file.write(msgspec.json.encode(said) + b"\n")
