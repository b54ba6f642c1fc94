"""Delays between attempts grow, are bounded, and are randomised; no code sleeps in another way."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

from txnframework.runtime.backoff import Backoff
from txnframework.testing.clock import START_MS, VirtualEnvironment

ROOT = Path(__file__).parents[2]
OWN_WAITS = {
    "txnframework_sql/_leases.py": "a heartbeat: it comes at its time, whether the last one got through or not",
    "txnframework_sql/postgresql/_listener.py": "a heartbeat",
    "txnframework_sql/sqlite/_poller.py": "a poll at the configured interval",
    "broker/maintenance.py": "rounds at the configured interval",
    "broker/dispatch/acknowledgments.py": "gathers acknowledgments; no attempt failed",
}
"""Loops that sleep and catch errors without being retries, and the reason."""


def test_waits_double_up_to_the_longest() -> None:
    """Each delay is between half of its bound and the whole."""
    backoff = Backoff(VirtualEnvironment(), 100, 1_000)
    for failures, longest_ms in ((1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (10_000, 1_000)):
        drawn = {backoff.delay_ms(failures) for _ in range(500)}
        assert longest_ms // 2 <= min(drawn) < max(drawn) <= longest_ms
        assert len(drawn) > 20
    assert [Backoff(VirtualEnvironment(), 1, 1).delay_ms(failures) for failures in (1, 2, 3)] == [1, 1, 1]


def test_a_seed_repeats_its_waits_and_others_differ() -> None:
    """Random numbers come from the environment: a simulation repeats them, and two processes differ."""

    def waits(seed: int) -> list[int]:
        return [Backoff(VirtualEnvironment(seed), 1_000, 60_000).delay_ms(failures) for failures in range(1, 9)]

    assert waits(1) == waits(1) != waits(2)


async def test_a_pause_is_as_long_as_drawn() -> None:
    """The environment's clock measures the pause."""
    environment = VirtualEnvironment(7)
    expected_ms = Backoff(VirtualEnvironment(7), 100, 1_000).delay_ms(2)
    pausing = asyncio.ensure_future(Backoff(environment, 100, 1_000).pause(2))
    await environment.advance(expected_ms - 1)
    assert not pausing.done()
    await environment.advance(1)
    assert pausing.done()
    assert environment.now_ms() == START_MS + expected_ms


def _sources() -> list[Path]:
    found = [*(ROOT / "src/txnframework").rglob("*.py")]
    for plugin in ("legacy", "memory", "metadata", "sidecar", "spark", "sql", "zookeeper"):
        found += (ROOT / f"plugins/txnframework-{plugin}/src").rglob("*.py")
    return [path for path in found if not {"testing", "demo"} & {*path.parts}]


def _waits(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "sleep_until"
        for one in ast.walk(node)
    )


def _retries_by_itself(node: ast.AST) -> bool:
    """Whether a loop catches what fails and waits other than by ``Backoff``."""
    if not isinstance(node, ast.While | ast.For | ast.AsyncFor):
        return False
    return _waits(node) and any(isinstance(one, ast.Try) and one.handlers for one in ast.walk(node))


def test_retries_wait_by_the_one_mechanism() -> None:
    """A loop that catches an error and sleeps, or sleeps in its handler, counts as a retry."""
    found: list[str] = []
    for path in _sources():
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        own = [node for node in nodes if _retries_by_itself(node)]
        own += [node for node in nodes if isinstance(node, ast.ExceptHandler) and _waits(node)]
        if own and path.name != "runtime/backoff.py" and not any(str(path).endswith(one) for one in OWN_WAITS):
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in own]
    assert found == []
