"""The base class of the documents in the metadata store, and their formats."""

from __future__ import annotations

from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]

FORMAT = 2
"""
The format of all documents, and of the index entries that are written with them; it changes with either.

2: write operations are indexed by segment and transaction, abort records by how far they reach.
"""

CO_COMMIT_FORMAT = 3
"""The format of a header with ``co_commit``. A release that does not know this rule must not commit the transaction."""

MIGRATION_FORMAT = 4
"""
The format of a record that a migration from ``persistent://`` to ``topic://`` changed. A release that does not know
migrations must not use it.
"""

ACK_FORMAT = 6
"""
The format of an acknowledgment in a transaction.

Those of format 2 may have been written by a process that had not yet looked whether its transaction was open.
"""

CURSOR_FORMAT = 7
"""The format of a cursor: acknowledged entries as texts of many. Formats 2 and 5 had two positions for each range."""


class Document(msgspec.Struct, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Base class of all documents."""

    format: int = FORMAT
