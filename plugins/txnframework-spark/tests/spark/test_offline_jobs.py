"""``txnframework job compact`` and ``job export`` on a real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import txnframework
from txnframework.broker import Order
from txnframework.cli import main
from txnframework.errors import Fenced
from txnframework.model.names import TopicName
from txnframework_spark import process
from txnframework_spark.errors import ExportConflict, JobFailed
from txnframework_spark.jobs import command
from txnframework_spark.jobs.audit.report import CHECKS
from txnframework_spark.jobs.compaction import COMPACTED, UP_TO_DATE, Compaction, CompactionReport, select_segments
from txnframework_spark.jobs.export import Export
from txnframework_spark.jobs.export_folder import ExportFolder
from txnframework_spark.jobs.session import JobProgress
from txnframework_spark.options.parser import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "offline-jobs.md"
PROGRESS = JobProgress(Console(quiet=True))
ORDERS = TopicName.parse("in")


class Killed(BaseException):
    """The driver is gone: whatever would be done after an error is not done."""


@pytest.fixture
def client(stores: Any) -> Iterator[txnframework.blocking.Client]:
    with txnframework.blocking.open({"metadata": {"url": stores.url}, "ledger": {"url": stores.url}}) as opened:
        yield opened


@pytest.fixture
def compact(spark: SparkSession, stores: Any) -> Callable[..., list[CompactionReport]]:
    """Return what compacts topic ``in``, in many small tasks."""

    def run(order: Order = "commit", dry_run: bool = False) -> list[CompactionReport]:
        options = StoreOptions(metadata=stores.url)
        return Compaction(options, order, 3, dry_run).run(spark, segments_of(stores), PROGRESS)

    return run


@pytest.fixture
def export(spark: SparkSession, stores: Any, tmp_path: Path) -> Callable[[], int]:
    """Return what exports topic ``in`` and says how many messages that were."""

    def run() -> int:
        work = Export(StoreOptions(metadata=stores.url), ORDERS, ExportFolder.of(str(tmp_path / "out")), 5)
        exported = work.run(spark, PROGRESS).exported
        return 0 if exported is None else exported.messages

    return run


def fill(client: txnframework.blocking.Client) -> None:
    """Send some messages outside transactions, and in three that end in another order than they began in."""
    with client.producer("in") as producer:
        for value in (b"p1", b"p2", b"p3"):
            producer.send(value, key=value)
        open_ones = [client.transaction() for _ in range(3)]
        for number, txn in enumerate(open_ones):
            txn.begin()
            for value in (b"x", b"y"):
                producer.send(b"%d%s" % (number, value), key=b"k", txn=txn)
        first, second, third = open_ones
        third.commit()
        second.abort()
        first.commit()


VISIBLE = [b"0x", b"0y", b"2x", b"2y", b"p1", b"p2", b"p3"]


def read(client: txnframework.blocking.Client, **options: Any) -> list[bytes]:
    with client.reader("in", **options) as reader:
        return [message.value for message in reader]


def compacted_ledgers(stores: Any) -> int:
    return len(process.run(stores.host.ledgers.list_names("compacted:", "", 100)))


def test_in_the_order_of_commits_beside_whoever_reads(
    client: txnframework.blocking.Client,
    stores: Any,
    compact: Callable[..., list[CompactionReport]],
    run_available: Any,
) -> None:
    """What counts is written in the order of its commits; readers, consumers and queries go on where they are."""
    fill(client)
    consumer = client.consumer("in", "billing", start="earliest")
    received = [consumer.receive() for _ in range(4)]
    consumer.ack(received[1], received[3])
    reader = client.reader("in")
    before = [next(iter(reader)).value for _ in range(1)]
    run_available()
    dry = compact(dry_run=True)
    assert compacted_ledgers(stores) == 0
    found = compact()
    for one, planned in zip(found, dry, strict=True):
        assert (one.state, one.kept_messages) == (COMPACTED, planned.kept_messages)
    assert sum(one.kept_messages for one in found) == len(VISIBLE)
    assert sum(one.status.message_count for one in found) == len(VISIBLE) + 2
    values = read(client, compacted=True)
    assert sorted(values) == VISIBLE
    assert [value for value in values if value[:1].isdigit()] == [b"2x", b"2y", b"0x", b"0y"]
    originals = {message.id: message.value for message in client.reader("in")}
    assert {message.id: message.value for message in client.reader("in", compacted=True)} == originals
    assert sorted(before + [message.value for message in reader]) == VISIBLE
    consumer.close()
    with client.consumer("in", "billing") as again:
        left = sorted(again.receive().value for _ in range(len(VISIBLE) - 2))
    assert left == sorted({*VISIBLE} - {received[1].value, received[3].value})
    with client.producer("in") as producer:
        producer.send(b"later", key=b"k")
    run_available()
    assert stores.read() == {value.decode(): 1 for value in (*VISIBLE, b"later")}
    assert sorted(read(client, compacted=True)) == sorted((*VISIBLE, b"later"))


def test_again_in_the_order_of_positions(
    client: txnframework.blocking.Client, stores: Any, compact: Callable[..., list[CompactionReport]]
) -> None:
    """It goes on from what was kept, once: nothing new, nothing to do; each time one generation is left."""
    fill(client)
    assert {one.state for one in compact("position")} == {COMPACTED}
    assert {one.state for one in compact("position")} == {UP_TO_DATE}
    assert read(client, compacted=True) == read(client)
    with client.producer("in") as producer:
        producer.send(b"later", key=b"k")
    found = compact("position")
    assert sorted(one.state for one in found) == [COMPACTED, UP_TO_DATE]
    assert read(client, compacted=True) == read(client)
    named = [process.run(stores.host.compaction.attempts.result(one.status.segment)).ledgers for one in found]
    assert compacted_ledgers(stores) == sum(map(len, named))
    compact()
    assert read(client, compacted=True) != read(client), "the order of commits is another one"
    assert {one.state for one in compact("position")} == {COMPACTED}
    assert read(client, compacted=True) == read(client), "what is put in another order is looked at anew"


def test_a_compaction_that_cannot_finish_leaves_nothing(
    client: txnframework.blocking.Client,
    stores: Any,
    compact: Callable[..., list[CompactionReport]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Overtaken, failed in a task, or killed before the switch: readers find what was there before, whole."""
    fill(client)
    real = Compaction._copied

    def overtaken(self: Compaction, spark: Any, host: Any, before: Any, *rest: Any) -> CompactionReport:
        client.compact("in")
        return real(self, spark, host, before, *rest)

    monkeypatch.setattr(Compaction, "_copied", overtaken)
    with pytest.raises(Fenced, match="began later"):
        compact()
    winner = read(client, compacted=True)
    assert sorted(winner) == [b"2y", b"p1", b"p2", b"p3"]
    monkeypatch.setattr(Compaction, "_copied", real)

    def killed(*_: Any) -> None:
        raise Killed

    for step in ("finish", "abandon"):
        with monkeypatch.context() as patched:
            attempts = stores.host.compaction.attempts
            patched.setattr(attempts, "finish", killed)
            if step == "abandon":
                patched.setattr(attempts, "abandon", killed)
            with pytest.raises(Killed):
                compact()
        assert read(client, compacted=True) == winner
    compact()
    assert sorted(read(client, compacted=True)) == VISIBLE


def test_outcomes_that_are_forgotten(
    stores: Any, client: txnframework.blocking.Client, compact: Callable[..., list[CompactionReport]]
) -> None:
    """A task that meets one fails the job in one sentence; what it wrote is removed."""
    fill(client)
    asked = process.run(stores.host.coordinator())
    for message in client.reader("in"):
        if message.txn_id is not None:
            process.run(asked.settle(message.txn_id))
    process.run(asked.collect(stores.host.environment.now_ms() + 10**9))
    with pytest.raises(JobFailed, match=r"was not compacted: the order of commits .* use the order of positions$"):
        compact()
    assert compacted_ledgers(stores) <= 1, "of the segment that has no transactions"
    compact("position")
    assert sorted(read(client, compacted=True)) == VISIBLE


def exported(folder: Path) -> list[bytes]:
    """Return what any reader of Parquet finds."""
    tables = [pq.read_table(file, columns=["value"]) for file in folder.glob("export=*/*.parquet")]
    return sorted(value for table in tables for value in table["value"].to_pylist())


def test_exports_are_incremental(
    spark: SparkSession, client: txnframework.blocking.Client, tmp_path: Path, export: Callable[[], int]
) -> None:
    """Each holds what was committed since the one before, also in segments that came since; nothing new, no export."""
    fill(client)
    with client.producer("in") as producer:
        late = client.transaction()
        late.begin()
        producer.send(b"late", key=b"p1", txn=late, headers={"h": b"1"})
        assert export() == len(VISIBLE)
        assert exported(tmp_path / "out") == VISIBLE
        assert export() == 0
        client.split("in", 0)
        producer.send(b"after", key=b"p2")
        late.commit()
        assert export() == 2
    assert exported(tmp_path / "out") == sorted((*VISIBLE, b"late", b"after"))
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.columns == ["key", "value", "topic", "segment", "offset", "timestamp", "headers", "export"]
    assert sorted(row["export"] for row in rows.collect()) == [1] * len(VISIBLE) + [2] * 2
    (row,) = rows.where("cast(value as string) = 'late'").collect()
    assert (row["headers"][0]["key"], bytes(row["headers"][0]["value"])) == ("h", b"1")


@pytest.mark.parametrize("step", ["_write", "finish", "rename", "clean"])
def test_an_export_killed_at_a_step_is_repeated(
    client: txnframework.blocking.Client,
    tmp_path: Path,
    export: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Whatever is visible is whole; run again, nothing is lost and nothing is there twice."""
    with client.producer("in") as producer:
        producer.send_many([b"1", b"2"])
        export()
        producer.send(b"3")

        def killed(*_: Any) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(ExportFolder, "remove", lambda *_: None)
            if step == "_write":
                real = Export._write
                patched.setattr(Export, "_write", lambda *given: (real(*given), killed()))
            elif step == "finish":
                patched.setattr(ExportFolder, "finish", killed)
            elif step == "rename":
                rename: Any = Path.rename
                patched.setattr(Path, "rename", lambda *given: (rename(*given), killed()))
            else:
                clean: Any = ExportFolder.clean
                patched.setattr(ExportFolder, "clean", lambda self, upto: killed() if upto == 2 else clean(self, upto))
            with pytest.raises(Killed):
                export()
        done = step in ("rename", "clean")
        assert exported(tmp_path / "out") == ([b"1", b"2", b"3"] if done else [b"1", b"2"])
        assert export() == (0 if done else 1)
        assert exported(tmp_path / "out") == [b"1", b"2", b"3"]
        assert not list((tmp_path / "out" / "_staging").iterdir())


def test_two_exports_at_once(
    client: txnframework.blocking.Client, tmp_path: Path, export: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to finish counts, the other says so."""
    with client.producer("in") as producer:
        producer.send(b"1")
    real = Export._write

    def overtaken(*given: Any) -> None:
        monkeypatch.setattr(Export, "_write", real)
        assert export() == 1
        real(*given)

    monkeypatch.setattr(Export, "_write", overtaken)
    with pytest.raises(ExportConflict):
        export()
    assert exported(tmp_path / "out") == [b"1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compact", "export"])
def test_all_processes_of_a_job_are_killed_while_tasks_write(
    client: txnframework.blocking.Client, stores: Any, tmp_path: Path, kind: str
) -> None:
    """Nothing of it counts; run again it is whole, and nothing is left of what was killed."""
    with client.producer("in") as producer:
        for number in range(40):
            txn = client.transaction()
            txn.begin()
            producer.send_many([b"%d-%d" % (number, one) for one in range(50)], txn=txn)
            txn.abort() if number % 3 == 0 else txn.commit()
    file, out = tmp_path / "txnframework.toml", tmp_path / "out"
    file.write_text(f'[metadata]\nurl = "{stores.url}"\n')
    words = ["job", kind, "in", "--config", str(file), "--master", "local[2]", "--task-messages", "100"]
    words += ["--to", str(out)] if kind == "export" else []
    command_line = [sys.executable, "-c", "import sys; from txnframework.cli import main; sys.exit(main())", *words]

    def writes() -> bool:
        return bool(compacted_ledgers(stores) or list(out.glob("_staging/**/*.parquet")))

    started = subprocess.Popen(
        command_line, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not writes():
        assert started.poll() is None
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert exported(out) == []
    visible = sorted(read(client))
    assert sorted(read(client, compacted=True)) == visible
    subprocess.run(command_line, check=True, capture_output=True)
    if kind == "export":
        assert exported(out) == visible
        assert not list((out / "_staging").iterdir())
    else:
        assert sorted(read(client, compacted=True)) == visible
        names = [process.run(stores.host.compaction.attempts.result(name)) for name in segments_of(stores)]
        assert compacted_ledgers(stores) == sum(len(one.ledgers) for one in names if one is not None)


def segments_of(stores: Any) -> tuple[str, ...]:
    return select_segments(process.run(stores.host.topics.layout(ORDERS)), None)


@pytest.fixture
def typed(
    spark: SparkSession,
    stores: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Return what runs a command on the Spark of these tests; it returns status, output and errors."""
    file = tmp_path / "txnframework.toml"
    file.write_text(f'[metadata]\nurl = "{stores.url}"\n')
    monkeypatch.setattr(command, "session", lambda *_: contextlib.nullcontext(spark))

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["job", *arguments, "--config", str(file)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_what_a_person_types(
    client: txnframework.blocking.Client, typed: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """A table or JSON shows the results, and what each waiting part waits for."""
    fill(client)
    with client.producer("in") as producer:
        txn = client.transaction()
        txn.begin()
        producer.send(b"open", key=b"k", txn=txn)
    status, out, _ = typed("compact", "in", "--output", "json")
    assert status == 0
    found = json.loads(out)["segments"]
    assert [one["state"] for one in found] == ["compacted", "compacted"]
    assert [one["waits_for"] for one in found if one["waits_for"]] == [[str(txn.id)]]
    status, out, err = typed("compact", "in", "--dry-run")
    assert (status, out.count("up to date")) == (0, 2)
    assert f"wait for transaction {txn.id}: run this command again after they have ended" in err
    status, out, _ = typed("export", "in", "--to", str(tmp_path / "out"), "--partition-by", "date")
    assert (status, "export=" in out, " 7 " in out) == (0, False, True)
    assert typed("export", "in", "--to", str(tmp_path / "out"))[:2] == (
        0,
        "Nothing was committed to in since the last export.\n",
    )


def test_what_an_audit_prints(
    client: txnframework.blocking.Client, typed: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """A table or a document, one line for each finding, and a status for scripts."""
    with client.producer("in") as producer:
        producer.send(b"apple", key=b"k")
    with client.consumer("in", "g", start="earliest") as consumer:
        consumer.ack(consumer.receive())
    flow = ("--flow", "in", "g", "out")
    status, out, err = typed("audit", "--to", str(tmp_path / "report"), *flow)
    assert status == 1
    assert f"The report is {tmp_path / 'report'}" in out
    assert err.startswith("missing-output: topic://public/default/in: g has acknowledged 'k' in segment ")
    options = ("--match", "upper(cast(key as string))", "--match-output", "'K'", "--output", "json")
    with client.producer("out") as producer:
        producer.send(b"pie")
    status, out, _ = typed("audit", "--to", str(tmp_path / "again"), *flow, *options)
    assert status == 0
    assert {**json.loads(out), "store": "", "created_ms": 0, "bytes": 0} == {
        **{"store": "", "created_ms": 0, "bytes": 0, "format": 2},
        **{"ledgers": 2, "entries": 2, "messages": 2, "transactions": 0, "findings": []},
        "flows": ["topic://public/default/in g topic://public/default/out"],
        "checks": {check: 0 for check in CHECKS if check != "changed-ledger"},
    }
    assert "exists; name a new file" in typed("audit", "--to", str(tmp_path / "report"))[2]
    assert "is not a readable report" in typed("audit", "--to", str(tmp_path / "x"), "--since", str(tmp_path))[2]


@pytest.mark.skipif(not PAGE.exists(), reason="the plugin stands without the documentation")
def test_the_page_on_offline_jobs(
    client: txnframework.blocking.Client,
    typed: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its commands run one after the other and print what it shows; the others are for a cluster, or other topics."""
    assert typed  # it makes the configuration
    monkeypatch.chdir(tmp_path)
    client.create_topic("orders")
    with client.producer("orders") as producer:
        producer.send(b"one apple")
        with client.transaction() as txn:
            producer.send(b"two apples", txn=txn)
    blocks = [block for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.S) if "\\" not in block][:-1]
    for step in "".join(blocks).split("$ ")[1:]:
        line, _, shown = step.partition("\n")
        status = main(shlex.split(line)[1:])
        out, err = capsys.readouterr()
        assert status == 0, err
        if shown.strip():
            assert out == shown


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("compact", "nowhere"), 1, "nowhere does not exist; create it first"),
        (("compact", "in", "--segment", "7"), 2, "topic://public/default/in has no segment 7; there are 0, 1"),
        (("export", "in", "--to", "s3a://bucket/x"), 2, "s3a://bucket/x is not a folder of a file system"),
        (("export", "nowhere", "--to", "x"), 1, "nowhere does not exist; create it first"),
        (("export", "persistent://a/b/c", "--to", "x"), 2, "persistent://a/b/c cannot be exported"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    typed: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], status: int, said: str
) -> None:
    """It names the thing and says what to do."""
    found = typed(*arguments)
    assert found[0] == status
    assert said in found[2]
    assert found[2].count("\n") == 1
