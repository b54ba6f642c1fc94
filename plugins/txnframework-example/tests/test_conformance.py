"""The notebook keeps every rule of its role that it does not say it cannot keep."""

from __future__ import annotations

from txnframework.testing import MetadataStoreSuite
from txnframework_example.testing import NotebookHarness


class TestNotebook(MetadataStoreSuite):
    """IMetadataStore in a file of JSON lines."""

    harness = NotebookHarness
