"""The suite of IMetadataStore, ICoCommitStore, IWatch and ILease."""

from __future__ import annotations

from typing import ClassVar

from txnframework.interfaces import IMetadataStore
from txnframework.testing._suites._metadata.batches import BatchRules
from txnframework.testing._suites._metadata.co_commits import CoCommitRules
from txnframework.testing._suites._metadata.faults import FaultRules
from txnframework.testing._suites._metadata.leases import LeaseRules, SessionRules
from txnframework.testing._suites._metadata.reads import NameRules, PageRules, StalenessRules
from txnframework.testing._suites._metadata.records import RecordRules
from txnframework.testing._suites._metadata.scans import IndexRules, ScanRules, SequenceRules
from txnframework.testing._suites._metadata.store_copies import RecordCopyRules
from txnframework.testing._suites._metadata.watches import WatchRules
from txnframework.testing.harness import Harness


class MetadataStoreSuite(
    RecordCopyRules,
    CoCommitRules,
    FaultRules,
    SessionRules,
    LeaseRules,
    StalenessRules,
    PageRules,
    WatchRules,
    BatchRules,
    SequenceRules,
    IndexRules,
    ScanRules,
    NameRules,
    RecordRules,
):
    """All rules of a metadata store: subclass as ``TestX(MetadataStoreSuite)`` and set ``harness``."""

    harness: ClassVar[type[Harness[IMetadataStore]]]
