"""Parts of torture: addresses behind proxies, disruptions, counts, and messages to the user."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from txnframework.plugin import Server, ServerMember
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import (
    Begin,
    Begun,
    Commit,
    Drained,
    DrainRows,
    DrainSubscription,
    DrainTopic,
    History,
    MessagePosition,
    Recorder,
    RowsFound,
    SeenMessage,
    Send,
)
from txnframework_simulation.torture.assignment import addresses_of, make_books, through
from txnframework_simulation.torture.disruptions import Disruptions
from txnframework_simulation.torture.report import Progress, TortureResult, counts_of, operations_of
from txnframework_simulation.torture.run import to_ask
from txnframework_simulation.torture.steps import step_file
from txnframework_simulation.torture.tables import connect_to
from txnframework_simulation.workloads.own_rows import STEPS


@pytest.mark.parametrize(
    ("url", "addresses", "moved"),
    [
        ("sqlite:////tmp/txn.db", (), None),
        (
            "postgresql://me:secret@127.0.0.1:5432/mine",
            (("127.0.0.1", 5432),),
            "postgresql://me:secret@localhost:90/mine",
        ),
        ("zookeeper://127.0.0.1:2181/txn", (("127.0.0.1", 2181),), "zookeeper://localhost:90/txn"),
        ("nats://one:4222,two:4223/txn", (("one", 4222), ("two", 4223)), "nats://localhost:90,localhost:91/txn"),
        ("nats://one:4222,two/txn", (), None),
    ],
)
def test_where_a_proxy_stands(url: str, addresses: tuple[tuple[str, int], ...], moved: str | None) -> None:
    """Each server of a store gets a proxy, with everything else in its URL as it was."""
    assert addresses_of(url) == addresses
    if moved is not None:
        assert through(url, [("localhost", 90 + number) for number, _ in enumerate(addresses)]) == moved


class MemberStub:
    """Stands for a member: remembers its signals."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"p{number}"
        self.works = True
        self.disrupted = asyncio.Event()
        self.proxies: dict[tuple[str, int], ProxyStub] = {("h", 1): ProxyStub(self.disrupted)}
        self.signals: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        self.disrupted.set()


class ProxyStub:
    """Stands for a proxy: remembers what was done to it."""

    connections = 2

    def __init__(self, disrupted: asyncio.Event) -> None:
        self.done: list[str] = []
        self._struck = disrupted

    def __getattr__(self, name: str) -> object:
        def do(*_: object) -> None:
            self.done.append(name)
            self._struck.set()

        return do


def test_every_disruption_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was done to a process is taken back when it is over, also when the run ends in the middle of it."""
    monkeypatch.setattr("txnframework_simulation.torture.disruptions.BETWEEN_SECONDS", (0.0, 0.001))
    members = [MemberStub(number) for number in range(3)]

    async def run() -> Disruptions:
        disruptions = Disruptions(members, 1, tmp_path / "disruptions.jsonl")  # type: ignore[arg-type]
        running = asyncio.create_task(disruptions.run())
        await asyncio.gather(*(member.disrupted.wait() for member in members))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return disruptions

    disruptions = asyncio.run(run())
    assert sum(disruptions.counts.values()) >= 3
    for member in members:
        assert member.signals[-1] is signal.SIGCONT
        assert member.proxies["h", 1].done[-1] == "restore"
    lines = (tmp_path / "disruptions.jsonl").read_text().splitlines()
    assert len(lines) == 2 * sum(disruptions.counts.values())


def test_members_of_a_cluster_fail_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member fails while no other one does, and recovers; the end of the run waits for that."""
    for name, value in (("BETWEEN_SECONDS", (0.0, 0.001)), ("PAUSE_SECONDS", (0.0, 0.001)), ("MEMBERS_CHANCE", 1.0)):
        monkeypatch.setattr(f"txnframework_simulation.torture.disruptions.{name}", value)
    failed: list[str] = []
    enough = threading.Event()

    def fail(name: str, how: str) -> None:
        assert len(failed) % 2 == 0
        failed.append(f"{how} {name}")

    def recover() -> None:
        assert len(failed) % 2 == 1
        failed.append("recover")
        if len(set(failed)) > 4:
            enough.set()

    members = tuple(
        ServerMember(name, {how: partial(fail, name, how) for how in ("kill", "cut")}, recover) for name in ("a", "b")
    )
    server = Server("nats://h", partial(fail, "all", "kill"), recover, members)

    async def run() -> Disruptions:
        disruptions = Disruptions([], 1, tmp_path / "disruptions.jsonl", {"s": server})
        running = asyncio.create_task(disruptions.run())
        assert await asyncio.to_thread(enough.wait, 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return disruptions

    disruptions = asyncio.run(run())
    assert failed[-1] == "recover"
    assert not disruptions.broken
    summary = disruptions.summary()
    assert summary["cuts of members"] == sum(one.startswith("cut ") for one in failed)
    assert summary["kills of members"] == sum(one in ("kill a", "kill b") for one in failed)
    assert summary["kills of servers"] == failed.count("kill all")
    assert summary["network disruptions"] == 0


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    """A seed determines the order and the targets of the disruptions."""

    def first(seed: int) -> str:
        file = tmp_path / f"{seed}-{next(numbers)}"
        members = [MemberStub(number) for number in range(3)]

        async def strike() -> None:
            disruptions = Disruptions(members, seed, file)  # type: ignore[arg-type]
            for member in members:
                disruptions._disrupt_member(member)  # type: ignore[arg-type]

        asyncio.run(strike())
        return "".join(line.partition("process")[2] for line in file.read_text().splitlines()[:3])

    numbers = count()
    assert first(1) == first(1)
    assert len({first(seed) for seed in range(5)}) > 1


def some_history() -> History:
    history = History()
    recorder = Recorder(count(1).__next__, history.events.append)
    for txn in ("a", "b"):
        recorder.invoke("c", Begin()).ok(Begun(txn))
    recorder.invoke("c", Commit("a")).ok()
    recorder.invoke("c", Commit("b")).unknown("the answer was lost")
    recorder.invoke("c", Send("t", "v")).fail("it was refused")
    recorder.invoke("c", Send("t", "w"))
    return history


def test_counts() -> None:
    """Operations are counted by their results; an operation without a reply is unknown."""
    history = some_history()
    calls = history.calls()
    assert counts_of(history, calls)["unknown outcomes"] == 2
    assert counts_of(history, calls)["transactions committed"] == 1
    assert operations_of(calls)["Send"] == {"fail": 1, "unknown": 1}
    assert to_ask(history) == ["b"]


def test_what_is_told() -> None:
    """The table has the counts, and says what they mean; what was wrong is named, and decides whether all is well."""
    well = TortureResult({"kills": 7}, {}, [])
    broken = TortureResult({}, {}, [Violation("lost write", "'a' is gone", ())], ["process p1 ended by itself: [boom]"])
    assert (well.ok, broken.ok) == (True, False)
    kinds = "unknown: no reply arrived, it may have succeeded"
    for result, words in (
        (well, ("kills", "7", "was violated", kinds)),
        (broken, ("lost write: 'a' is gone", "[boom]")),
    ):
        said = StringIO()
        result.print_to(Console(file=said, width=160))
        assert all(word in " ".join(said.getvalue().split()) for word in words)


def test_progress_in_a_file(tmp_path: Path) -> None:
    """Without a terminal, progress is logged in whole lines from time to time, the first one soon."""
    (tmp_path / "one.jsonl").write_bytes(b'{"kind":"ok"}\n{"kind":"unknown"}\n{"kind":"o')
    written = StringIO()
    disrupting = SimpleNamespace(counts=Counter({"a disruption with a name that would not fit into eighty columns": 3}))

    async def work() -> None:
        progress = Progress(Console(file=written), tmp_path, 0.05, disrupting)  # type: ignore[arg-type]
        await progress.until(time.monotonic() + 0.3)

    asyncio.run(work())
    assert written.getvalue() == (
        "0 of 0 s: 1 done, 0 refused, 1 unknown; 3 a disruption with a name that would not fit into eighty columns\n"
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_process_kills_itself_at_a_step(step: str, tmp_path: Path) -> None:
    """It is killed by SIGKILL, no earlier than at its step, and a file names the step."""
    history = tmp_path / "history.jsonl"
    script = f"""
import random, sys, time
from pathlib import Path
from txnframework_simulation.torture.steps import KillAtStep
from txnframework_simulation.workloads.own_rows import STEPS
class Chance(random.Random):
    def random(self): return 0.0
    def choice(self, steps): return {step!r}
kill = KillAtStep(Path({str(history)!r}), Chance())
for step in STEPS:
    print(step, flush=True)
    kill(step)
    if step == {step!r}:
        time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stdout.split() == list(STEPS[: STEPS.index(step) + 1])
    assert step_file(history).read_text() == step


def test_the_rows_are_compared_with_the_invoices() -> None:
    """A row without an invoice is found, and so is an invoice without a row."""
    books = make_books(connect_to("sqlite:///"), lambda _: None)
    orders, invoices = books.topics

    def violations(sent: tuple[str, ...], rows: tuple[str, ...]) -> list[str]:
        history = History()
        recorder = Recorder(count(1).__next__, history.events.append)
        seen = [SeenMessage(MessagePosition(invoices, 1, number), value) for number, value in enumerate(sent)]
        order = SeenMessage(MessagePosition(orders, 2, 0), "o")
        recorder.invoke("d", DrainTopic(orders)).ok(Drained((order,)))
        recorder.invoke("d", DrainTopic(invoices)).ok(Drained(tuple(seen)))
        recorder.invoke("d", DrainSubscription(orders, "billing")).ok(Drained(() if sent else (order,)))
        recorder.invoke("d", DrainRows("invoices")).ok(RowsFound(dict.fromkeys(rows, "o")))
        return [str(one) for one in books.violations(history)]

    assert violations(("o>1",), ("o>1",)) == []
    assert violations((), ()) == []
    assert any("is a message and no row" in one for one in violations(("o>1",), ()))
    assert any("is a row and no message" in one for one in violations((), ("o>1",)))
