"""The run of the demo: load the input, start and kill the pipeline, and finally judge the outputs."""

import asyncio
import json
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults import SEGMENTS, Sizes, Start, contradiction, written_segments
from report import Kill, Outcome, Split, Steps
from rich.console import Console
from rows import ENRICHED, OUTPUTS, Row, expected_outputs
from verdict import Evidence, OutputRow, judge

import txnframework
from txnframework import AckState, Isolation, MessageID, blocking
from txnframework.config import redact_url
from txnframework.errors import ReceiveTimeout, TransactionNotFound
from txnframework_spark.errors import extract_reason
from txnframework_spark.testing.pipelines import PipelineProcess

WAIT_S = 180.0
"""The longest wait for a pause point; the start of Spark takes up to a minute on a busy machine."""
SENDS_AT_ONCE = 500
SILENCE_MS = 1_000
"""The time without a message after which an output counts as read, if all expected messages have arrived."""
PATIENCE_MS = 10_000
"""The same if messages are missing."""


class Demo:
    """One run in an empty directory."""

    def __init__(
        self, source: Path, rows: list[Row], urls: tuple[str, str], directory: Path, batch: int | None
    ) -> None:
        token = secrets.token_hex(4)
        self.namespace = f"public/demo-{token}"
        self.group = f"public-demo-{token}"
        self.rows = rows
        self.sizes = Sizes.of(len(rows), batch)
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.config: dict[str, Any] = {
            "metadata": {"url": urls[0]},
            "ledger": {"url": urls[1]},
            "client": {"entry_messages_max": self.sizes.entry},
            # No background sweep: a restart must itself find the leftovers of earlier runs.
            "transactions": {"sweep": False},
        }
        self.loaded: dict[int, MessageID] = {}
        self.outcome = Outcome(str(source), *map(redact_url, urls), str(directory), rows_in=len(rows))

    def run(self, console: Console) -> Outcome:
        began = time.monotonic()
        plan = self.sizes.plan
        steps = Steps(console, len(plan) + 2)
        self.write_config()
        with blocking.open(self.config) as client:
            with steps.step(f"load {self.sizes.first_part:,} of {len(self.rows):,} rows") as results:
                for topic in ("input", *OUTPUTS):
                    client.create_topic(self.topic(topic), segments=SEGMENTS)
                self.load(self.sizes.first_part)
                results.append(f"entries of {self.sizes.entry} rows, batches of {self.sizes.batch}")
            for number, start in enumerate(plan, 1):
                with steps.step(f"start {number}: {start.title}") as results:
                    results.extend(self.start(client, number, start))
                if self.outcome.errors:
                    break
        with steps.step("read both outputs and compare") as results:
            # A new client: it knows only the content of the stores.
            with blocking.open(self.config) as client:
                self.judge(client)
            results.append(f"{len(self.outcome.findings):,} defects" if self.outcome.findings else "no defect")
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def topic(self, name: str) -> str:
        return f"topic://{self.namespace}/{name}"

    def write_config(self) -> None:
        """Write the pipeline's configuration; only its owner may read it, because URLs contain passwords."""
        sections = []
        for section, settings in self.config.items():
            lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
            sections.append("\n".join([f"[{section}]", *lines, ""]))
        path = self.directory / "txnframework.toml"
        path.touch(mode=0o600)
        path.write_text("\n".join(sections), encoding="utf-8")

    def load(self, count: int | None = None) -> None:
        """Send the next rows, all of them by default, and remember the message of each line."""
        first = len(self.loaded)
        rows = self.rows[first : None if count is None else first + count]

        async def send(rows: Sequence[Row]) -> None:
            async with txnframework.open(self.config) as client, client.producer(self.topic("input")) as producer:
                for first in range(0, len(rows), SENDS_AT_ONCE):
                    part = rows[first : first + SENDS_AT_ONCE]
                    # Concurrent sends share entries.
                    ids = await asyncio.gather(*(producer.send(row.message(), key=row.key) for row in part))
                    self.loaded |= {row.line: sent for row, sent in zip(part, ids, strict=True)}

        asyncio.run(send(rows))

    # -- starts ---------------------------------------------------------------------------------------

    def start(self, client: blocking.Client, number: int, start: Start) -> list[str]:
        """Start the pipeline, apply the faults, and return what was done; no process of the pipeline is left."""
        self.outcome.starts = number
        if start.kill is None:
            self.load()
        program = str(Path(__file__).with_name("pipeline.py"))
        config = str(self.directory / "txnframework.toml")
        command = [sys.executable, program, config, str(self.checkpoint), self.namespace, str(self.sizes.batch)]
        points = [point for point in (start.split, start.kill) if point is not None]
        results = []
        with PipelineProcess(command, self.directory, f"start-{number}", points, WAIT_S) as pipeline:
            try:
                if start.split is not None:
                    results.append(self.split(client, pipeline, start.split))
                    pipeline.release(start.split)
                if start.kill is not None:
                    results.append(self.kill(client, pipeline, number, start.kill))
                elif reason := pipeline.failure():
                    self.outcome.errors.append(reason)
                    results.append(f"missed: {reason}")
                else:
                    results.append("everything read")
            except AssertionError as error:  # the pipeline ended, or hangs
                reason = extract_reason(pipeline.log) or str(error).splitlines()[0]
                self.outcome.errors.append(f"{reason} (start-{number}.log)")
                results.append(f"missed: {reason}")
        if start.lose_checkpoint:
            shutil.rmtree(self.checkpoint)
            self.outcome.checkpoint_losses += 1
        return results

    def kill(self, client: blocking.Client, pipeline: PipelineProcess, number: int, point: str) -> str:
        """Kill Python and JVM of the pipeline at the point, if the records confirm it."""
        name, _, batch = point.partition("@")
        txn = pipeline.arrival(point).get("txn")
        transaction = None if txn is None else client.describe_transaction(txn)
        reason = contradiction(point, self.checkpoint, transaction)
        killed = pipeline.kill()
        if reason is None and not killed.jvm:
            reason = "its JVM had already ended"
        hit = reason is None
        self.outcome.kills.append(Kill(name, int(batch), number, hit, txn, killed.python, killed.jvm, reason))
        return "killed" if hit else f"missed {point}: {reason}"

    def split(self, client: blocking.Client, pipeline: PipelineProcess, point: str) -> str:
        """Split a segment that the open transaction wrote to and one of the input, and load the rest of the input."""
        txn = pipeline.arrival(point)["txn"]
        transaction = client.describe_transaction(txn)
        reason = contradiction(point, self.checkpoint, transaction)
        if reason is not None:
            self.outcome.errors.append(f"no split at {point}: {reason}")
            return f"missed {point}: {reason}"
        written = written_segments(transaction)
        for topic in (self.topic(ENRICHED), self.topic("input")):
            layout = client.layout(topic)
            segments = {str(layout.name_of(segment.id)): segment.id for segment in layout.active()}
            chosen = next((name for name in segments if name in written), next(iter(segments)))
            children = client.split(topic, segments[chosen])
            self.outcome.splits.append(Split(chosen, children, txn, chosen in written))
        self.load()
        if not any(split.written for split in self.outcome.splits):
            self.outcome.errors.append("no segment was split that the open transaction had written to")
        return f"{len(self.outcome.splits)} segments split"

    # -- the verdict ----------------------------------------------------------------------------------

    def judge(self, client: blocking.Client) -> None:
        expected = expected_outputs(self.rows)
        found = [row for output in OUTPUTS for row in self.read(client, output, len(expected[output]))]
        transactions = {row.txn for row in found if row.txn is not None}
        evidence = Evidence(
            expected, tuple(found), self.unacknowledged(client), {txn: outcome(client, txn) for txn in transactions}
        )
        self.outcome.findings = judge(evidence)
        self.outcome.transactions = len(transactions)
        self.outcome.outputs = {
            output: {"expected": len(expected[output]), "found": sum(row.output == output for row in found)}
            for output in OUTPUTS
        }
        self.outcome.discarded = sum(self.discarded(client, output) for output in OUTPUTS)

    def read(self, client: blocking.Client, output: str, expected: int) -> list[OutputRow]:
        """Return every row of an output that a new consumer receives."""
        rows: list[OutputRow] = []
        with client.consumer(self.topic(output), "verdict", start="earliest") as consumer:
            while True:
                wait_ms = SILENCE_MS if len(rows) >= expected else PATIENCE_MS
                try:
                    messages = consumer.receive_many(messages_max=500, timeout_ms=wait_ms)
                except ReceiveTimeout:
                    return rows
                for message in messages:
                    value = json.loads(message.value or b"null")
                    line = value.get("line") if isinstance(value, dict) else None
                    txn = None if message.txn_id is None else str(message.txn_id)
                    rows.append(OutputRow(output, txn, line, value))
                consumer.ack(*messages)

    def unacknowledged(self, client: blocking.Client) -> set[int]:
        """Return the lines whose input the pipeline has not acknowledged."""
        return {
            line
            for line, message in self.loaded.items()
            if client.ack_status(self.group, message).state is not AckState.DELETED
        }

    def discarded(self, client: blocking.Client, output: str) -> int:
        """Return the number of stored rows that are not committed, and so hidden from consumers."""
        with client.reader(self.topic(output), isolation=Isolation.READ_UNCOMMITTED) as reader:
            return sum(not message.committed for message in reader)


def outcome(client: blocking.Client, txn: str) -> str:
    try:
        return client.outcome(txn).value
    except TransactionNotFound:
        return "unknown"
