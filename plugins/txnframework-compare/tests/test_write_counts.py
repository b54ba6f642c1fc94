"""What a transaction writes, as numbers that follow from each family's protocol."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.plugin import load_plugins
from txnframework_compare.backends import backend
from txnframework_compare.comparison import result_of
from txnframework_compare.families import FAMILIES
from txnframework_compare.measures.writes import PHASES, concurrent, writes
from txnframework_compare.system import Workload, opened_system

TOPICS, MESSAGES = 2, 3
WORKLOAD = Workload(topics=TOPICS, messages=MESSAGES, samples=2)


def counted(family: str) -> dict[str, float]:
    """Return every figure of one transaction that was committed and one that was aborted, over memory."""
    registry = load_plugins()

    async def work() -> dict[str, float]:
        with backend("memory:", None, registry) as stores:
            async with opened_system(FAMILIES[family], stores.create_stores(), WORKLOAD, registry, {}) as system:
                figures = await writes(system, 1)
        return {name: one.median for name, one in result_of(FAMILIES[family], 1, [figures]).figures.items()}

    return asyncio.run(work())


def by_phase(found: dict[str, float], ending: str, unit: str) -> tuple[float, ...]:
    return tuple(found[f"{ending}.{phase}.{unit}"] for phase in PHASES)


def test_what_the_metadata_family_writes() -> None:
    """
    One header, one write record for each topic and one for its acknowledgments, one change of the header.

    With the header of a commit, the cursors change and every operation record is deleted. After an abort, the abort
    records follow, and the deletions. The ledgers hold messages only.
    """
    found = counted("metadata")
    for ending, cursors in (("commit", TOPICS), ("abort", 0)):
        settled, deleted = TOPICS - cursors, 2 * cursors
        assert by_phase(found, ending, "entries") == (0, TOPICS * MESSAGES, 0, 0, 0)
        assert by_phase(found, ending, "records") == (1, TOPICS, TOPICS, 1 + cursors, settled)
        assert by_phase(found, ending, "deletions") == (0, 0, 0, deleted, 2 * TOPICS - deleted)


def test_what_the_log_family_writes() -> None:
    """
    One record in the log for the beginning, each topic and each subscription; one more where these are kept.

    Then the decision, a marker in each topic, what is settled in each subscription, and the final state. Cursors are
    the only records, and only a commit moves them.
    """
    found = counted("log")
    for ending, cursors in (("commit", TOPICS), ("abort", 0)):
        ended = 1 + TOPICS + TOPICS + 1
        assert by_phase(found, ending, "entries") == (1, TOPICS * MESSAGES + TOPICS, 2 * TOPICS, ended, 0)
        assert by_phase(found, ending, "records") == (0, 0, 0, cursors, 0)
        assert by_phase(found, ending, "deletions") == (0, 0, 0, 0, 0)


def test_what_the_sidecar_writes() -> None:
    """As the log family, and for each topic a note beside it: after its marker, or instead of one for an abort."""
    found = counted("sidecar")
    for ending, markers in (("commit", TOPICS), ("abort", 0)):
        ended = 1 + markers + TOPICS + TOPICS + 1
        assert by_phase(found, ending, "entries") == (1, TOPICS * MESSAGES + TOPICS, 2 * TOPICS, ended, 0)
        assert by_phase(found, ending, "records") == (0, 0, 0, markers, 0)


@pytest.mark.parametrize(
    ("family", "entries", "records"),
    # The message; begin, enlist, decide and finish in the log, and a marker; the sidecar's note.
    [("metadata", 1, 3), ("log", 6, 0), ("sidecar", 7, 0)],
)
def test_what_transactions_write_that_run_together(family: str, entries: int, records: int) -> None:
    """As much as one alone: nothing of a family grows with how many run at a time."""
    registry = load_plugins()

    async def work() -> dict[str, float]:
        with backend("memory:", None, registry) as stores:
            async with opened_system(FAMILIES[family], stores.create_stores(), WORKLOAD, registry, {}) as system:
                figures = await concurrent(system, 4)
        return {name: one.median for name, one in result_of(FAMILIES[family], 4, [figures]).figures.items()}

    found = asyncio.run(work())
    assert (found["entries"], found["records"]) == (entries, records)


def test_batches_share_entries() -> None:
    """With batches, transactions that run concurrently append fewer entries than alone, and never more."""
    registry = load_plugins()

    async def work() -> float:
        with backend("memory:", None, registry) as stores:
            async with opened_system(FAMILIES["log-batched"], stores.create_stores(), WORKLOAD, registry, {}) as system:
                return {one.name: one.value for one in await concurrent(system, 16)}["entries"]  # type: ignore[return-value]

    assert asyncio.run(work()) < 6
