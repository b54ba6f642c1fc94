"""The metadata family keeps its rules over the tutorial's store, and the quick start runs on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from txnframework.testing import BufferSuite, CoordinatorSuite, PendingAckSuite, WorldHarness
from txnframework_example.testing import NotebookHarness
from txnframework_memory.testing import MemoryLedgerHarness
from txnframework_metadata.plugin import (
    txnframework_buffers,
    txnframework_coordinators,
    txnframework_pending_ack_stores,
)

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart.py"
CONFIGURATION = '{"metadata": {"url": "notebook:///book.jsonl"}, "ledger": {"url": "memory://quickstart"}}'


class MetadataFamilyInANotebook(WorldHarness):
    """Coordinator, buffer and pending acknowledgments ``metadata`` over the tutorial's store."""

    stores = NotebookHarness
    ledgers = MemoryLedgerHarness
    (coordinator,) = txnframework_coordinators()
    (buffer,) = txnframework_buffers()
    (pending_acks,) = txnframework_pending_ack_stores()


class TestMetadataBufferInANotebook(BufferSuite):
    """ITransactionBuffer of the metadata family."""

    harness = MetadataFamilyInANotebook


class TestMetadataCoordinatorInANotebook(CoordinatorSuite):
    """ITransactionCoordinator and IApplicationCoordinator of the metadata family."""

    harness = MetadataFamilyInANotebook


class TestMetadataPendingAcksInANotebook(PendingAckSuite):
    """IPendingAckStore of the metadata family."""

    harness = MetadataFamilyInANotebook


def test_the_quick_start_runs_on_it(tmp_path: Path) -> None:
    """The first example of the documentation runs with another location of the metadata only."""
    source = QUICKSTART.read_text(encoding="utf-8")
    assert source.count("txnframework.open()") == 1
    program = source.replace("txnframework.open()", f"txnframework.open({CONFIGURATION})")
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "invoice for three apples\n"
    assert (tmp_path / "book.jsonl").exists()
