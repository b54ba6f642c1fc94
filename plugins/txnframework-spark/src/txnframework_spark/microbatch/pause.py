"""Named points where a pipeline stops and waits, so that a test or a demonstration can kill it there.

One environment variable enables them; the JVM and every Python worker inherit it::

    TXNFRAMEWORK_SPARK_PAUSE="mid-write@2,committed@3;/srv/pauses"

The value lists points, a semicolon, and a directory. ``@`` gives the number of a batch; ``mid-write`` alone applies to
every batch. Without the variable, a pause point costs one look at an empty table.

======================  =====================================================================================
``planning``            in the source's process, when Spark asks for the end of the next batch: the previous
                        batch is in ``commits``, nothing of the next one is written
``partitioning``        in the source's process, when Spark asks for a batch's tasks: it is in ``offsets``, and no
                        task runs
``begun``               in a write task, when the batch's transaction is open and no row is written
``planned``             in a read task, before it registers what the batch reads
``registered``          in a read task, after the registration and before the first read
``mid-write``           in a write task, when about half of its first rows are durable in an open transaction
``staged``              in a write task, when all of its rows are durable and the driver has not been informed
``judged``              in ``commit``, when the batch was judged fresh and nothing is acknowledged
``acks-put``            in ``commit``, when the acknowledgments are put and the transaction is still open
``committed``           in ``commit``, when the transaction is COMMITTED and Spark has not been informed
``settled``             in ``commit``, when the cursors have moved and Spark has not been informed
======================  =====================================================================================

The source's process does not know the number of the batch. So ``planning`` and ``partitioning`` take no number, and the
first batch that reaches them pauses.

A process that reaches a point writes the file ``<point>-<batch>-<pid>.json`` into the directory (``<point>-<pid>.json``
without a batch). The file describes its state as JSON. The process then waits until

* ``<point>-<batch>.release`` (``<point>.release``) or ``release`` exists in the directory: it continues, and processes
  that arrive later do not wait; or ``<point>-<batch>-<pid>.release``: only this process continues; or
* the directory is removed, or its parent process has died: no process can release it, and it raises PauseOrphaned. An
  orphan that continued would write into a transaction that has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txnframework_spark.errors import InvalidOption, PauseOrphaned

VARIABLE: Final = "TXNFRAMEWORK_SPARK_PAUSE"
PLANNING: Final = "planning"
PARTITIONING: Final = "partitioning"
BEGUN: Final = "begun"
PLANNED: Final = "planned"
REGISTERED: Final = "registered"
MID_WRITE: Final = "mid-write"
STAGED: Final = "staged"
JUDGED: Final = "judged"
ACKS_PUT: Final = "acks-put"
COMMITTED: Final = "committed"
SETTLED: Final = "settled"
WITHOUT_BATCH: Final = (PLANNING, PARTITIONING)
POINTS: Final = (
    *WITHOUT_BATCH,
    BEGUN,
    PLANNED,
    REGISTERED,
    MID_WRITE,
    STAGED,
    JUDGED,
    ACKS_PUT,
    COMMITTED,
    SETTLED,
)
"""The points, in the order in which a batch reaches them."""

_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Pauses:
    """The enabled pause points: for each point the batches, None for every batch."""

    directory: Path | None = None
    points: Mapping[str, frozenset[int] | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Pauses:
        """Return the points in the variable's value, or raise InvalidOption."""
        names, separator, directory = text.partition(";")
        if not separator or not directory:
            raise InvalidOption(VARIABLE, "expected points, a semicolon and a directory, such as mid-write@2;/tmp/p")
        points: dict[str, frozenset[int] | None] = {}
        for name in filter(None, (part.strip() for part in names.split(","))):
            point, at, batch = name.partition("@")
            if point not in POINTS:
                raise InvalidOption(VARIABLE, f"{point!r} is not one of {', '.join(POINTS)}")
            if at and not batch.isdecimal():
                raise InvalidOption(VARIABLE, f"{batch!r} is not the number of a batch")
            if at and point in WITHOUT_BATCH:
                raise InvalidOption(
                    VARIABLE, f"{point} takes no batch number: the process that reaches it does not know the batch"
                )
            before = points.get(point, frozenset())
            points[point] = None if not at or before is None else before | {int(batch)}
        return cls(Path(directory), points)

    @classmethod
    def from_environment(cls) -> Pauses:
        """Return the points that the environment enables; usually none."""
        text = os.environ.get(VARIABLE)
        return cls.parse(text) if text else cls()

    def includes(self, point: str, batch: int | None) -> bool:
        """Return whether ``point`` is enabled in ``batch``; None for a point without a batch."""
        if point not in self.points:
            return False
        batches = self.points[point]
        return batches is None or batch in batches

    def reach(self, point: str, batch: int | None, **doing: object) -> None:
        """Report the point and wait there, if it is enabled in ``batch``; raise PauseOrphaned if orphaned."""
        if not self.points or self.directory is None or not self.includes(point, batch):
            return
        place = point if batch is None else f"{point}-{batch}"
        mine = f"{place}-{os.getpid()}"
        facts = {"point": point, "batch": batch, "pid": os.getpid(), "at_ms": time.time_ns() // 1_000_000, **doing}
        partial = self.directory / f"{mine}.partial"
        partial.write_text(json.dumps(facts, default=str))
        # The rename is atomic, so a reader of the report sees all of it.
        partial.rename(self.directory / f"{mine}.json")
        parent = os.getppid()
        releases = [self.directory / name for name in (f"{mine}.release", f"{place}.release", "release")]
        while not any(release.exists() for release in releases):
            if os.getppid() != parent or not self.directory.is_dir():
                raise PauseOrphaned(f"no process is left to release pause point {place}")
            time.sleep(_LOOK_EVERY_S)
