"""What an operator reads is true: the commands of the how-to pages are run, and print what the page shows."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import txnframework
from txnframework import Client, blocking
from txnframework.broker import Event
from txnframework.model import Action, End

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
SWEEPING_ELSEWHERE: dict[str, object] = {"sweep": False}


async def leave_open(client: Client, text: bytes) -> str:
    """Send a message in a transaction that is not ended; return its id."""
    txn = client.transaction(outlives_client=True, timeout_ms=3_600_000)
    await txn.begin()
    await (await client.producer("orders")).send(text, txn=txn)
    return str(txn.id)


def test_operate(tmp_path: Path, run_page: Callable[..., None]) -> None:
    """With a topic, a subscription, a transaction that is open and one that ended and was not settled."""
    config: dict[str, object] = {
        "metadata": {"url": f"sqlite:///{tmp_path}/txnframework-data/txn.db"},
        "transactions": SWEEPING_ELSEWHERE,
    }

    async def prepare() -> tuple[str, str]:
        async with txnframework.open(config) as client:
            await client.create_topic("orders")
            await client.subscribe("orders", "billing", start="earliest")
            async with await client.producer("orders") as producer:
                await producer.send(b"one apple")
            opened, ended = await leave_open(client, b"two apples"), await leave_open(client, b"three apples")
            await (await client.host.coordinator()).end(
                End(txnframework.TxnID.parse(ended), Action.COMMIT, operator=True)
            )
            return opened, ended

    opened, ended = asyncio.run(prepare())
    run_page(HOW_TO / "operate.md", {"ENDED": ended, "ID": opened}, shows_all=False)


def test_restore(tmp_path: Path, run_page: Callable[..., None]) -> None:
    """With a metadata store that is older than the ledger store, and a transaction of after its backup."""
    urls = {name: f"sqlite:///{name}.db" for name in ("metadata", "ledger")}
    (tmp_path / "txnframework.toml").write_text("".join(f'[{name}]\nurl = "{url}"\n' for name, url in urls.items()))
    config: dict[str, object] = {name: {"url": f"sqlite:///{tmp_path}/{name}.db"} for name in urls}

    async def prepare() -> None:
        async with txnframework.open(config) as client:
            await client.create_topic("orders")
            await leave_open(client, b"one apple")

    asyncio.run(prepare())
    shutil.copy(tmp_path / "metadata.db", tmp_path / "metadata.bak")
    with blocking.open(config) as client, client.transaction() as txn:
        client.producer("orders").send(b"two apples", txn=txn)
    shutil.copy(tmp_path / "metadata.bak", tmp_path / "metadata.db")
    run_page(HOW_TO / "restore.md", {}, shows_all=True)


def test_copy(tmp_path: Path, run_page: Callable[..., None]) -> None:
    """With a transaction that is open, in one database, and an empty one for the copy."""
    for name, file in (("txnframework", "txn"), ("new", "new")):
        url = f"sqlite:///{file}.db"
        (tmp_path / f"{name}.toml").write_text("".join(f'[{one}]\nurl = "{url}"\n' for one in ("metadata", "ledger")))

    async def prepare() -> None:
        async with txnframework.open({"metadata": {"url": f"sqlite:///{tmp_path}/txn.db"}}) as client:
            await client.create_topic("orders")
            await leave_open(client, b"one apple")

    asyncio.run(prepare())
    run_page(HOW_TO / "copy.md", {}, shows_all=True)


def test_metrics(run_page: Callable[..., None]) -> None:
    """In an empty directory."""
    run_page(HOW_TO / "metrics.md", {}, shows_all=False)


def test_deploy(run_page: Callable[..., None]) -> None:
    """In an empty directory."""
    run_page(HOW_TO / "deploy.md", {}, shows_all=False)


def test_questions(tmp_path: Path, run_page: Callable[..., None]) -> None:
    """With the topic and the subscription that the answers name."""
    with blocking.open({"metadata": {"url": f"sqlite:///{tmp_path}/txnframework-data/txn.db"}}) as client:
        client.create_topic("orders")
        client.subscribe("orders", "billing", start="earliest")
    run_page(HOW_TO.parent / "explanation" / "faq.md", {}, shows_all=False)


def test_figures_of_other_systems() -> None:
    """The page has each kept figure, in the table of its kind, and no other number in these rows."""
    page = (HOW_TO.parent / "explanation" / "comparison.md").read_text(encoding="utf-8")
    kept = tomllib.loads((HOW_TO.parents[1] / "bench" / "peers.toml").read_text(encoding="utf-8"))
    assert len(kept) == 4
    for name, peer in kept.items():
        rows = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", page, re.M)
        cells = [cell.strip() for row in rows for cell in row.split("|")]
        shown = [float(cell.replace(",", "")) for cell in cells if cell != "not measured"]
        assert shown == list(peer["figures"].values()), name


def test_commits_of_this_framework() -> None:
    """The page repeats the figures of the page that compares the families."""
    page = (HOW_TO.parent / "explanation" / "comparison.md").read_text(encoding="utf-8")
    commits = re.search(r"^metadata +([\d.]+) .* ([\d.]+) \(1/", (HOW_TO / "compare.md").read_text("utf-8"), re.M)
    assert commits
    assert f"{commits[1]} ms for one topic and {commits[2]} ms for 1,000 topics" in page


def test_alerts_and_dashboard(tmp_path: Path) -> None:
    """Every metric and label that they use is in the output of the exporter, with a topic and a subscription."""
    pytest.importorskip("prometheus_client")
    config: dict[str, object] = {"metadata": {"url": f"sqlite:///{tmp_path}/txnframework-data/txn.db"}}

    async def prepare() -> None:
        async with txnframework.open(config) as client:
            await client.create_topic("orders")
            await client.subscribe("orders", "billing", start="earliest")
            await leave_open(client, b"one apple")

    asyncio.run(prepare())
    command = [sys.executable, "-m", "txnframework", "metrics"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240)
    exposed = set(re.findall(r"^([a-z_]+)(?:\{|\s)", done.stdout, re.M))
    labels = set(re.findall(r'[{,]([a-z]+)="', done.stdout))
    monitoring = HOW_TO.parent / "monitoring"
    rules = (monitoring / "alerts.yml").read_text(encoding="utf-8")
    dashboard = json.loads((monitoring / "dashboard.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions = "\n".join([*re.findall(r"expr: (.*(?:\n {10}.*)*)", rules), *shown])
    used = set(re.findall(r"\b(?:txnframework|pulsar)_[a-z_]+", expressions))
    assert len(used) == 12
    assert used <= exposed
    assert set(re.findall(r"\$labels\.(\w+)", rules)) | {"topic"} <= labels
    assert len(re.findall(r"- alert: ", rules)) == len(re.findall(r"expr: ", rules)) == 9
    if PROMTOOL is not None:  # its rules for names, such as a unit at the end
        linted = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=done.stdout, capture_output=True, text=True, check=False
        )
        assert (linted.returncode, linted.stderr) == (0, "")


PROMTOOL = shutil.which("promtool")
BILLING = '{topic="orders",subscription="billing"}'
FIRING = {
    "ExporterAbsent": ("txnframework_sent_messages_total", "0x20", "10m"),
    "StoresUnavailable": ("txnframework_up", "0x10", "5m"),
    "TransactionHangs": ('txnframework_oldest_open_transaction_age_seconds{family="metadata"}', "301+60x10", "5m"),
    "OperationsNotSettled": ('txnframework_unsettled_operations{family="metadata"}', "1001x30", "20m"),
    "MessagesUndecided": ('txnframework_undecided_messages{topic="orders",segment="1"}', "1001x10", "10m"),
    "LagGrows": (f"txnframework_subscription_lag_messages{BILLING}", "1001+1x90", "90m"),
    "MessagesWaitTooLong": (f"txnframework_oldest_unacknowledged_message_age_seconds{BILLING}", "3601x10", "10m"),
    "DeadLetters": (f"txnframework_dead_letters{BILLING}", "0x70 1x10", "75m"),
    "ReportOld": ("txnframework_report_age_seconds", "301x10", "10m"),
}
"""For each alert a series at which it fires, and when."""
QUIET = {
    "ExporterAbsent": ("txnframework_up", "0x20"),
    "StoresUnavailable": ("txnframework_up", "1x10"),
    "TransactionHangs": ('txnframework_oldest_open_transaction_age_seconds{family="metadata"}', "299x10"),
    "OperationsNotSettled": ('txnframework_unsettled_operations{family="metadata"}', "1000x30"),
    "MessagesUndecided": ('txnframework_undecided_messages{topic="orders",segment="1"}', "1000x10"),
    "LagGrows": (f"txnframework_subscription_lag_messages{BILLING}", "2001-1x90"),
    "MessagesWaitTooLong": (f"txnframework_oldest_unacknowledged_message_age_seconds{BILLING}", "3600x10"),
    "DeadLetters": (f"txnframework_dead_letters{BILLING}", "7x80"),
    "ReportOld": ("txnframework_report_age_seconds", "300x10"),
}
"""For each alert a series at which it stays quiet."""


@pytest.mark.promtool
def test_alerts_fire(tmp_path: Path) -> None:
    """Each alert fires where it should, and only there, as Prometheus' own tool evaluates the rules."""
    assert PROMTOOL is not None, "install Prometheus, which has promtool"
    rules = HOW_TO.parent / "monitoring" / "alerts.yml"
    names = re.findall(r"- alert: Txnframework(\w+)", rules.read_text(encoding="utf-8"))
    assert set(names) == set(FIRING) == set(QUIET)
    tests: list[object] = []
    for name in names:
        series, values, at = FIRING[name]
        for shown, fires in ((values, True), (QUIET[name][1], False)):
            looking = {"expr": f'count(ALERTS{{alertname="Txnframework{name}",alertstate="firing"}})', "eval_time": at}
            looking["exp_samples"] = [{"labels": "{}", "value": 1}] if fires else []  # type: ignore[assignment]
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": series, "values": shown}],
                    "promql_expr_test": [looking],
                }
            )
    file = tmp_path / "alerts_test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    for command in (["check", "rules", str(rules)], ["test", "rules", str(file)]):
        done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr


def test_json_logs() -> None:
    """An event is one line of JSON with its facts; the page shows such a line, with all fields."""
    formatter = runpy.run_path(str(HOW_TO.parent / "examples" / "json_logs.py"))["JsonLines"]()
    facts = {"transaction": "7", "process": "worker@web-2:93", "owner": "billing@web-3:4711"}
    record = logging.makeLogRecord({"name": "txnframework.events", "levelname": "WARNING", "msg": "aborted"})
    vars(record).update(event="orphan_aborted", facts=facts)
    written = json.loads(formatter.format(record))
    assert written["event"] == "orphan_aborted"
    assert facts.items() <= written.items()
    page = (HOW_TO / "logs.md").read_text(encoding="utf-8")
    assert json.loads(page.split("```text\n")[1].split("\n")[0]).keys() == written.keys()


def test_the_page_of_logs_has_every_event() -> None:
    page = (HOW_TO / "logs.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?:INFO|WARNING)", page, re.M) == [one.value for one in Event]


def test_metrics_of_a_process(tmp_path: Path) -> None:
    """The program of metrics.md runs, on a port that is free."""
    pytest.importorskip("prometheus_client")
    page = (HOW_TO / "metrics.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert program.count("start_http_server(9465,") == 1
    command = [sys.executable, "-c", program.replace("start_http_server(9465,", "start_http_server(0,")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
