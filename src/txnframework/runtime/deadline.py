"""Time limits of waits within one process."""

from __future__ import annotations

from txnframework.environment import Environment


class Deadline:
    """
    The end of a wait of this process, ``timeout_ms`` from now.

    It is measured by the monotonic clock, so a clock that is set meanwhile neither lengthens the wait nor ends it.
    Times that are stored, or that other processes compare, need the shared clock instead: ``Environment.now_ms``.
    """

    __slots__ = ("_at_ms", "_environment")

    def __init__(self, environment: Environment, timeout_ms: int) -> None:
        self._environment = environment
        self._at_ms = environment.monotonic_ms() + timeout_ms

    @property
    def left_ms(self) -> int:
        """The time that is left; 0 if the deadline has passed."""
        return max(0, self._at_ms - self._environment.monotonic_ms())

    async def passed(self) -> None:
        """Wait until the deadline has passed; wait for one step of the event loop if it has."""
        await self._environment.sleep(self.left_ms)
        while left_ms := self.left_ms:
            await self._environment.sleep(left_ms)
