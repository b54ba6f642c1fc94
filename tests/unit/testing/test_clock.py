"""Virtual time advances only on request."""

from __future__ import annotations

import asyncio

from txnframework.testing import VirtualEnvironment


def test_sleepers_wake_in_the_order_of_time() -> None:
    """A sleeper wakes when its time is reached, the earliest first, and sees its own time."""
    woken: list[tuple[str, int]] = []

    async def main() -> None:
        environment = VirtualEnvironment()
        start = environment.now_ms()

        async def sleep(name: str, for_ms: int) -> None:
            await environment.sleep_until(start + for_ms)
            woken.append((name, environment.now_ms() - start))
            if name == "first":
                await environment.sleep_until(start + 250)
                woken.append(("again", environment.now_ms() - start))

        tasks = [asyncio.ensure_future(sleep(name, at)) for name, at in (("late", 300), ("first", 100), ("never", 301))]
        await environment.advance(300)
        assert environment.now_ms() == start + 300
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert woken == [("first", 100), ("again", 250), ("late", 300)]


async def test_what_has_passed_does_not_wait() -> None:
    """Sleeping until a time that has passed returns without any advance."""
    environment = VirtualEnvironment(now_ms=5)
    await environment.sleep_until(5)
    await environment.sleep_until(0)


def test_randomness_repeats() -> None:
    """Equal seeds give equal bits."""
    one, two = VirtualEnvironment(seed=7), VirtualEnvironment(seed=7)
    assert [one.random_bits(64) for _ in range(3)] == [two.random_bits(64) for _ in range(3)]
