"""The command line over a real store: input, output and exit status."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model.records import FORMAT

if TYPE_CHECKING:
    from conftest import Stores


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_messages_go_in_and_come_out(cli: Any) -> None:
    """What was produced is consumed, as text and as one JSON document a line."""
    assert cli("topic", "create", "orders", "--segments", "2").status == 0
    assert cli("topic", "produce", "orders", "one", "two", "--key", "k", "--header", "from=test").status == 0
    assert cli("topic", "produce", "orders", "--key", "k", stdin=b"three\n\xff\n").out.startswith("Sent 2 messages")
    assert cli("topic", "consume", "orders").out.splitlines() == ["one", "two", "three", "\N{REPLACEMENT CHARACTER}"]
    first, _, _, last = lines(cli("topic", "consume", "orders", "--output", "json").out)
    assert (first["value"], first["key"], first["headers"]) == ("one", "k", {"from": "test"})
    assert last["value_base64"] == "/w=="
    assert "value" not in last


def test_a_null_is_told_from_an_empty_value(cli: Any) -> None:
    """Null and empty values are distinct in text, in JSON, in peek, and in compaction, which drops a null with
    its key.
    """
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "one", "", "--key", "k")
    assert cli("topic", "produce", "orders", "--key", "k", "--null").out.startswith("Sent 1 message ")
    refused = cli("topic", "produce", "orders", "one", "--null")
    assert (refused.status, "omit MESSAGES" in refused.err) == (2, True)
    assert cli("topic", "consume", "orders").out.splitlines() == ["one", "", "(null)"]
    assert [one["value"] for one in lines(cli("topic", "consume", "orders", "--output", "json").out)] == [
        "one",
        "",
        None,
    ]
    cli("subscription", "create", "orders", "billing", "--start", "earliest")
    peeked = cli("subscription", "peek", "orders", "billing", "--output", "json").out
    assert [one["value"] for one in lines(peeked)] == ["one", "", None]
    cli("topic", "compact", "orders")
    assert cli("topic", "consume", "orders", "--compacted").out == ""


def test_a_subscription_goes_on_where_it_stopped(cli: Any) -> None:
    """Printed messages are acknowledged; the next call starts after them."""
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "one", "two", "three")
    consumed = [
        cli("topic", "consume", "orders", "--subscription", "billing", "--messages", "2").out.split(),
        cli("topic", "consume", "orders", "--subscription", "billing", "--messages", "1").out.split(),
    ]
    assert consumed == [["one", "two"], ["three"]]
    assert json.loads(cli("subscription", "list", "orders", "--output", "json").out) == ["billing"]
    described = json.loads(cli("subscription", "describe", "orders", "billing", "--output", "json").out)
    assert [one["open_transactions"] for one in described["segments"]] == [[]]


def test_the_process_that_dispatches_a_segment_is_shown(cli: Any, shared: Stores) -> None:
    """In JSON and in text, by its consumer's name and its session; a segment without a process has none."""
    cli("topic", "create", "orders", "--segments", "2")
    describe = ("subscription", "describe", "orders", "billing")

    def dispatchers() -> dict[int, str | None]:
        described = json.loads(cli(*describe, "--output", "json").out)
        return {one["segment"]: one["dispatched_by"] for one in described["segments"]}

    async def while_consumed() -> None:
        async with shared.open() as client:
            worker = f"worker-1 on {SystemEnvironment().process_name()} in {client.host.metadata.session} as exclusive"
            segment = (await client.layout("orders")).name_of(0)
            async with await client.consumer(segment, "billing", name="worker-1"):
                assert await asyncio.to_thread(dispatchers) == {0: worker, 1: None}
                text = (await asyncio.to_thread(cli, *describe)).out
                assert "dispatched by" in text
                first, second = (line for line in text.splitlines() if "active" in line)
                assert worker in first
                assert "session-" not in second

    asyncio.run(while_consumed())
    assert dispatchers() == {0: None, 1: None}


def test_a_transaction_is_sent_whole_or_not_at_all(cli: Any) -> None:
    """With --transaction, one refused message makes the command send none."""
    cli("topic", "create", "orders")
    with Path("txnframework.toml").open("a") as config:
        config.write("[client]\nmessage_bytes_max = 60\n")
    refused = cli("topic", "produce", "orders", "--transaction", stdin=b"fine\nmuch too long for this\n")
    assert refused.status == 2
    assert refused.err.count("\n") == 1
    assert cli("topic", "consume", "orders").out == ""


def test_segments_split_and_merge(cli: Any) -> None:
    """Splits and merges are printed, and described with parents and children."""
    cli("topic", "create", "orders")
    assert cli("topic", "split", "orders", "0").out == "Split segment 0 into 1 and 2.\n"
    assert cli("topic", "merge", "orders", "1", "2").out == "Merged segments 1 and 2 into 3.\n"
    described = json.loads(cli("topic", "describe", "orders", "--output", "json").out)
    assert [(one["segment"], one["state"], one["parents"]) for one in described["segments"]] == [
        (0, "replaced", []),
        (1, "replaced", [0]),
        (2, "replaced", [0]),
        (3, "active", [1, 2]),
    ]
    assert "0000-ffff" in cli("topic", "describe", "orders").out


def test_topics_of_both_domains(cli: Any) -> None:
    """Each topic is listed with its domain and described with its plugins.

    A persistent topic always has one segment.
    """
    name = "persistent://public/default/audit"
    for topic in ("orders", name):
        assert cli("topic", "create", topic).status == 0
    listed = json.loads(cli("topic", "list", "--output", "json").out)
    assert [(one["topic"], one["domain"]) for one in listed] == [
        (name, "persistent"),
        ("topic://public/default/orders", "topic"),
    ]
    (only,) = json.loads(cli("topic", "list", "public/default", "--domain", "persistent", "--output", "json").out)
    assert (only["topic"], only["segments"]) == (name, 1)
    assert cli("topic", "produce", name, "one", "two").status == 0
    described = json.loads(cli("topic", "describe", name, "--output", "json").out)
    assert described["plugins"].startswith("without transactions: coordinator 'log'")
    (segment,) = described["segments"]
    assert (segment["range"], segment["messages"], segment["readable"]) == ("0000-ffff", 2, segment["last"])
    one_sentence(cli("topic", "split", name, "0"), "only topic:// topics are split")
    assert "coordinator metadata" in cli("topic", "describe", "orders").out


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[retention]\ntime_ms = "3 days"', "retention.time_ms: expected an integer, found '3 days'"),
        ("[retention]\nbytes = -2", "retention.bytes: expected an integer >= -1, found -2"),
        ('[domains.segment]\ncoordinator = "metdata"', "no coordinator named 'metdata' is installed"),
        (
            '[domains.persistent]\ncoordinator = "metadata"',
            "domains.persistent.buffer: no transaction buffer named 'marker' is installed",
        ),
        ("[dispatchers.shard]", "did you mean 'shared'?"),
    ],
)
def test_a_configuration_that_is_wrong(cli: Any, tmp_path: Path, written: str, said: str) -> None:
    """The error names the key, the problem and the allowed values in one sentence, status 2.

    Also in an edited ``init`` file.
    """
    (tmp_path / "mine.toml").write_text(written)
    refused = cli("check", "mine.toml")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert said in refused.err


def test_what_init_writes_is_right(cli: Any) -> None:
    """The file that ``init`` writes names the options of the installed plugins, and changes nothing."""
    assert cli("init", "mine.toml").status == 0
    text = Path("mine.toml").read_text(encoding="utf-8")
    for told in (
        "[retention]",
        "# [coordinators.metadata]",
        "# timers_max = ",
        "# settling_max = 32",
        "# lock_timeout_ms = 10_000",
    ):
        assert told in text
    assert cli("check", "mine.toml").status == 0


def test_check_says_what_is_thrown_away(cli: Any, tmp_path: Path) -> None:
    """A retention rule that deletes messages is printed in a line of its own."""
    (tmp_path / "mine.toml").write_text("[retention]\ntime_ms = 86_400_000")
    assert "\n  retention   acknowledged messages are deleted after 24 h\n" in cli("check", "mine.toml").out
    assert "retention" not in cli("check").out


def test_check_shows_what_a_namespace_chooses(cli: Any, tmp_path: Path) -> None:
    """The settings of a namespace are printed below the defaults, and only where they differ."""
    (tmp_path / "mine.toml").write_text(
        '[namespaces."mine/all".persistent]\ncoordinator = "metadata"\nbuffer = "metadata"\npending_ack = "metadata"'
    )
    shown = cli("check", "mine.toml").out
    assert shown.count("in mine/all: ") == 1
    assert "in mine/all: coordinator metadata, buffer metadata, pending acks metadata\n" in shown


def test_a_subscription_is_moved_by_hand(cli: Any) -> None:
    """A subscription can be moved to either end, a message or a time: peek, lag and receive agree afterwards."""
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "one", "two", "three")
    cli("subscription", "create", "orders", "billing", "--start", "earliest")
    two = lines(cli("topic", "consume", "orders", "--output", "json").out)[1]["id"]

    def after(to: str) -> tuple[list[str], int]:
        assert cli("subscription", "seek", "orders", "billing", to).status == 0
        (segment,) = json.loads(cli("subscription", "describe", "orders", "billing", "--output", "json").out)[
            "segments"
        ]
        return cli("subscription", "peek", "orders", "billing").out.split(), segment["lag"]

    assert after("latest") == ([], 0)
    assert after("earliest") == (["one", "two", "three"], 3)
    assert after(two) == (["two", "three"], 2)
    assert after("2000-01-01") == (["one", "two", "three"], 3)
    assert after("2999-01-01T00:00:00Z") == ([], 0)
    refused = cli("subscription", "seek", "orders", "billing", "yesterday")
    assert refused.status == 2
    assert "invalid position 'yesterday'" in refused.err


def test_a_topic_is_compacted_and_deleted(cli: Any) -> None:
    """The last message of each key is read; a topic that is in use is deleted by force only."""
    cli("topic", "create", "orders")
    for message in ("one", "two"):
        cli("topic", "produce", "orders", message, "--key", "k")
    assert cli("topic", "compact", "orders").status == 0
    assert cli("topic", "consume", "orders", "--compacted").out == "two\n"
    assert cli("maintain").out == "Done.\n"
    cli("subscription", "create", "orders", "billing")
    assert cli("topic", "delete", "orders", "--yes").status == 1
    assert cli("topic", "delete", "orders", "--yes", "--force").status == 0
    assert json.loads(cli("topic", "list", "--output", "json").out) == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("topic", "describe", "nowhere"), 1, "topic://public/default/nowhere does not exist; create it first"),
        (("topic", "create", "orders"), 1, "topic://public/default/orders already exists"),
        (("topic", "create", "a/b"), 2, "'a/b' is not a topic name"),
        (("topic", "split", "orders", "7"), 1, "there is no segment 7"),
        (("topic", "list", "public"), 2, "invalid namespace 'public'"),
        (("topic", "produce", "orders", "x", "--header", "nonsense"), 2, "invalid header 'nonsense'"),
        (("topic", "consume", "orders", "--config", "missing.toml"), 2, "missing.toml"),
        (("topic", "consume", "orders", "--type", "shared"), 2, "--type needs --subscription"),
        (("topic", "consume", "orders", "--compacted", "--subscription", "s"), 2, "cannot be used with --subscription"),
        (("topic", "delete", "orders"), 2, "cannot ask for confirmation without a terminal: add --yes"),
        (("transaction", "abort", "12"), 2, "'12' is not a transaction id"),
        (("transaction", "describe", "0" * 32), 1, "is not known"),
        (("transaction", "describe", "8" + "0" * 31), 1, "no coordinator of that family is installed"),
        (("transaction", "abort", "8" + "0" * 31), 1, "no coordinator of that family is installed"),
        (("transaction", "settle", "0" * 32), 1, "is not known"),
        (("subscription", "describe", "orders", "nobody"), 1, "has no subscription nobody"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(cli: Any, arguments: tuple[str, ...], status: int, said: str) -> None:
    """Invalid input ends with status 2, an invalid state with 1; both errors name the object without a traceback."""
    cli("topic", "create", "orders")
    refused = cli(*arguments)
    assert refused.status == status
    assert said in refused.err
    assert refused.err.startswith("Error: ")
    assert refused.err.count("\n") == 1


@pytest.mark.usefixtures("sqlite")
def test_a_file_that_is_no_database_is_refused(cli: Any, tmp_path: Path) -> None:
    """The error names the file, which is unchanged."""
    content = b"not a database at all" * 100
    (tmp_path / "txn.db").write_bytes(content)
    refused = cli("topic", "list")
    assert refused.status == 2
    assert "txn.db is not a SQLite database" in refused.err
    assert (tmp_path / "txn.db").read_bytes() == content
    assert refused.err.count("\n") == 1


def change(path: Path, *statements: str) -> None:
    """Change a database behind the store's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def one_sentence(refused: SimpleNamespace, *said: str) -> None:
    """Assert that the command ended with status 1 and one sentence that contains all of these texts."""
    assert refused.status == 1
    assert refused.err.startswith("Error: ")
    assert refused.err.count("\n") == 1
    for words in said:
        assert words in refused.err


@pytest.mark.usefixtures("sqlite")
def test_a_database_that_another_version_wrote_is_refused(cli: Any, tmp_path: Path) -> None:
    """The error names the database, the version that wrote it, and the remedy."""
    cli("topic", "create", "orders")
    change(tmp_path / "txn.db", "UPDATE txnframework_schema SET version_num = '9999'")
    one_sentence(cli("topic", "list"), "txn.db", "9999", "release")


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_record_that_another_version_wrote_is_refused(cli: Any, tmp_path: Path, other: int) -> None:
    """The error names the record, its format, and the remedy."""
    cli("topic", "create", "orders")
    change(
        tmp_path / "txn.db", f"UPDATE records SET value = replace(value, '\"format\":{FORMAT}', '\"format\":{other}')"
    )
    one_sentence(cli("topic", "list"), "/topic/public/default/orders", f"format version {other}", "open it with")


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("reading", [(), ("--subscription", "billing")])
def test_a_damaged_entry_is_named_and_not_passed_over(cli: Any, tmp_path: Path, reading: tuple[str, ...]) -> None:
    """Messages before the damaged entry are printed; later ones are not."""
    cli("topic", "create", "orders")
    for message in ("one", "two", "three"):
        cli("topic", "produce", "orders", message)
    change(tmp_path / "txn.db", f"UPDATE entries SET data = zeroblob(length(data)) WHERE place = {(1 << 32) + 1}")
    refused = cli("topic", "consume", "orders", *reading)
    one_sentence(refused, "entry 1:1 of segment://public/default/orders/0000-ffff-0 is damaged")
    assert "three" not in refused.out


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("reading", [(), ("--subscription", "billing")])
def test_an_entry_that_another_version_wrote_is_refused(cli: Any, tmp_path: Path, reading: tuple[str, ...]) -> None:
    """The error names the entry, its format and the remedy.

    No later entry is delivered in its place, and nothing is lost.
    """
    cli("topic", "create", "orders")
    for message in ("one", "two"):
        cli("topic", "produce", "orders", message)
    put_version = (
        "UPDATE entries SET data = CAST(substr(data, 1, 4) || x'{}' || substr(data, 7) AS BLOB) WHERE place = "
        + str(1 << 32)
    )
    version = sqlite3.connect(tmp_path / "txn.db").execute("SELECT hex(substr(data, 5, 2)) FROM entries").fetchone()[0]
    change(tmp_path / "txn.db", put_version.format("0700"))
    refused = cli("topic", "consume", "orders", *reading)
    segment = "segment://public/default/orders/0000-ffff-0"
    one_sentence(refused, f"entry 1:0 of {segment}", "format version 7", "open it with the one that wrote it")
    assert refused.out == ""
    change(tmp_path / "txn.db", put_version.format(version))
    assert cli("topic", "consume", "orders", *reading).out == "one\ntwo\n"


@pytest.mark.usefixtures("sqlite")
def test_a_ledger_of_another_store_is_refused(cli: Any, tmp_path: Path) -> None:
    """The error names both stores, and neither is changed."""
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "one")
    (tmp_path / "other.toml").write_text(
        f'[metadata]\nurl = "sqlite:///{tmp_path}/other.db"\n[ledger]\nurl = "sqlite:///{tmp_path}/txn.db"\n'
    )
    one_sentence(cli("topic", "list", "--config", "other.toml"), "txn.db", "do not belong together")
    assert cli("topic", "consume", "orders").out == "one\n"


def test_a_sealed_segment_takes_no_message(cli: Any) -> None:
    """The error names the segments that accept messages now."""
    cli("topic", "create", "orders")
    cli("topic", "split", "orders", "0")
    segment = "segment://public/default/orders/0000-ffff-0"
    one_sentence(cli("topic", "produce", segment, "late"), segment, "sealed", "send to its topic")
    assert cli("topic", "consume", "orders").out == ""


def test_a_subscription_that_another_process_has_is_refused(cli: Any, shared: Stores) -> None:
    """The error names the holder, which keeps the subscription."""
    cli("topic", "create", "orders")

    async def hold() -> SimpleNamespace:
        async with shared.open() as client, await client.consumer("orders", "billing"):
            return await asyncio.to_thread(cli, "topic", "consume", "orders", "--subscription", "billing")

    process = SystemEnvironment().process_name()
    one_sentence(
        asyncio.run(hold()), "subscription billing", f"is dispatched by {process} in session-", "try again when"
    )


LISTS_TOPICS = "'txnframework topic list' lists all topics"
LISTS_SUBSCRIPTIONS = "'txnframework subscription list' lists the subscriptions"


def test_a_name_that_does_not_exist_is_compared_with_those_that_do(cli: Any) -> None:
    """Commands suggest similar topics of the namespace, and similar subscriptions; otherwise the command that lists."""
    cli("topic", "create", "orders")
    cli("subscription", "create", "orders", "billing")
    orders = "did you mean topic://public/default/orders?"
    for arguments, advice in (
        (("topic", "describe", "order"), orders),
        (("topic", "produce", "Orders", "x"), orders),
        (("topic", "delete", "persistent://public/default/orders", "--yes"), orders),
        (("subscription", "list", "ordres"), orders),
        (("subscription", "describe", "orders", "biling"), "did you mean billing?"),
        (("topic", "describe", "invoices"), LISTS_TOPICS),
        (("topic", "describe", "acme/sales/orders"), LISTS_TOPICS),
        (("subscription", "describe", "orders", "audit"), LISTS_SUBSCRIPTIONS),
    ):
        refused = cli(*arguments)
        assert refused.status == 1
        assert f"; {advice}" in refused.err
        assert ("did you mean" in refused.err) == advice.startswith("did you mean")


def test_a_url_is_no_configuration_file(cli: Any) -> None:
    """The URL is quoted with all of its slashes and without its password."""
    for option in (("--config", "postgresql://u:sesame@h/d", "topic", "list"), ("check", "postgresql://u:sesame@h/d")):
        refused = cli(*option)
        assert refused.status == 2
        assert refused.err.startswith("Error: postgresql://u:***@h/d: this is a URL")
