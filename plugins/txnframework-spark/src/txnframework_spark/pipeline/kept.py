"""What ``pipeline status`` tells of a plan's state: noted in the metadata store by ``pipeline run`` after each batch.

Only Spark knows it, and status is told without Spark. It is a note, not a part of the batch: a run that is killed
behind a batch has not noted it, and then the note is one batch old.
"""

from __future__ import annotations

import contextlib
from typing import Final, Literal

import msgspec

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Expect, Key, Put
from txnframework.model.paths import escape
from txnframework_spark.progress import StateProgress

_ROOT: Final = "/spark-pipeline"


class StateNote(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pipeline behind ``batch``; ``late_rows``: dropped since the pipeline began, the last in
    ``late_batch``.
    """

    format: Literal[1] = 1
    batch: int
    watermark: str | None
    rows: int
    bytes: int
    late_rows: int = 0
    late_batch: int | None = None


def after(before: StateNote | None, batch: int, found: StateProgress) -> StateNote:
    """Return the note behind a batch; ``before``: the one that is there."""
    late_rows = 0 if before is None else before.late_rows
    late_batch = None if before is None else before.late_batch
    return StateNote(
        batch=batch,
        watermark=found.watermark,
        rows=found.rows,
        bytes=found.bytes,
        late_rows=late_rows + found.late_rows,
        late_batch=batch if found.late_rows else late_batch,
    )


async def load_note(store: IMetadataStore, pipeline: str) -> StateNote | None:
    """Return the note of a pipeline; None: there is none that this release can read."""
    found = await store.get(_key(pipeline))
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.value, type=StateNote)
    except msgspec.DecodeError:
        return None


async def keep_note(store: IMetadataStore, pipeline: str, note: StateNote) -> None:
    """Write the note; where the store is away the next batch does."""
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await store.put(Put(_key(pipeline), msgspec.json.encode(note), Expect.ANY))


def _key(pipeline: str) -> Key:
    return Key(f"{_ROOT}/{escape(pipeline)}")
