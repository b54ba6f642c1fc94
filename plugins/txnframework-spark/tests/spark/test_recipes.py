"""The programs of docs/how-to/spark-recipes.md, one after the other, on topics of a test."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.functions import lit

import txnframework
from txnframework_spark import schema_id, with_schema_id
from txnframework_spark.testing.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "spark-recipes.md"
KAFKA = "key binary, value binary, headers array<struct<key: string, value: binary>>"
HOUR_MS = 3_600_000

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the plugin is tested without the documentation")


@pytest.fixture
def recipe(spark: SparkSession, stores: Stores, tmp_path: Path) -> Callable[[str], None]:
    """Return what runs the recipe with a heading, with the folders and the stores of this test."""
    config = tmp_path / "txnframework.toml"
    config.write_text(f'[metadata]\nurl = "{stores.url}"\n')
    names: dict[str, Any] = {"__name__": "__main__"}
    shared = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    exec(compile(shared.replace("txnframework.toml", str(config)), PAGE.name, "exec"), names)
    assert names["spark"].sparkContext is spark.sparkContext

    def run(heading: str) -> None:
        (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.S | re.M)
        (program,) = re.findall(r"```python\n(.*?)```", section, re.S)
        program = program.replace('"/lake/', f'"{tmp_path}/lake/').replace(
            '"/checkpoints/', f'"{tmp_path}/checkpoints/'
        )
        kafka = f'.format("parquet").schema("{KAFKA}")', f'.load("{tmp_path}/kafka")'
        if 'format("kafka")' in program:
            program = program.replace('.format("kafka")', kafka[0]).replace(".load()", kafka[1])
        if "import from_avro, to_avro" in program:
            names.update(from_avro=read_json, to_avro=write_json)
            program = re.sub("^from pyspark.sql.avro.*$", "", program, flags=re.M)
        exec(compile(program, f"{PAGE.name}: {heading}", "exec"), names)

    return run


def read_json(data: Column, schema: str, options: dict[str, str] | None = None) -> Column:
    """Return what ``from_avro`` returns; the missing fields of an older schema have their defaults."""
    from pyspark.sql import functions as f

    decoded = f.from_json(data.cast("string"), "pieces bigint, price bigint")
    assert (options is None) == ("price" in schema)
    return decoded if options is None else decoded.withField("price", f.lit(1).cast("bigint"))


def write_json(column: Column, schema: str) -> Column:
    from pyspark.sql import functions as f

    assert "price" in schema
    return f.to_json(column).cast("binary")


def test_orders_from_kafka_to_everywhere(
    spark: SparkSession, stores: Stores, recipe: Callable[[str], None], tmp_path: Path
) -> None:
    """What one recipe writes is what the next ones read; each is run again and adds nothing, or only what is new."""
    stores.create("orders", "urgent", "loud", "checked", "labels", "checked-2")
    orders = ["one apple", "two pears!", " Three"]
    rows = [(one[:1].encode(), one.encode(), [("schema", b"7")]) for one in orders]
    spark.createDataFrame(rows, KAFKA).write.parquet(str(tmp_path / "kafka"))
    recipe("Copy a Kafka topic")
    assert stores.read("orders") == Counter(orders)

    recipe("Write a topic and a Delta table")
    spark.createDataFrame([(b"4", b"4 figs!", None)], KAFKA).write.mode("append").parquet(str(tmp_path / "kafka"))
    recipe("Copy a Kafka topic")
    recipe("Write a topic and a Delta table")
    orders.append("4 figs!")
    table = DeltaTable(str(tmp_path / "lake" / "orders"))
    assert Counter(table.to_pyarrow_table()["value"].to_pylist()) == Counter(orders)
    assert stores.read("urgent") == Counter(["two pears!", "4 figs!"])

    for _ in range(2):
        recipe("Backfill")
        assert stores.read("loud") == Counter(one.upper() for one in orders)

    recipe("Two pipelines in a chain")
    assert stores.read("labels") == Counter(f"to: {one.strip()}" for one in orders)
    with txnframework.blocking.open({"metadata": {"url": stores.url}, "ledger": {"url": stores.url}}) as client:
        headers = Counter(tuple(message.headers) for message in client.reader("labels"))
    assert sorted(headers.values()) == [1, 3], "three with the header of Kafka, one without any"

    recipe("Replay")
    assert stores.read("checked-2") == Counter(one.strip().lower() for one in orders)
    assert stores.read("checked") == Counter(one.strip() for one in orders)


def test_late_data(stores: Stores, recipe: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    stores.create("clicks", "hours")
    stores.publish(["k", "k"], "clicks", published_ms=0)
    stores.publish(["k"], "clicks", published_ms=2 * HOUR_MS)
    recipe("Late data")
    assert [json.loads(value)["count"] for value in stores.read("hours")] == [2]
    stores.publish(["k"], "clicks", published_ms=1)
    stores.publish(["k"], "clicks", published_ms=5 * HOUR_MS)
    recipe("Late data")
    assert sorted(json.loads(value)["count"] for value in stores.read("hours").elements()) == [1, 2]
    assert capsys.readouterr().out.splitlines() == ["0 late clicks were dropped", "1 late clicks were dropped"]


def test_avro_with_a_schema_id(
    spark: SparkSession, stores: Stores, recipe: Callable[[str], None], tmp_path: Path
) -> None:
    """Values of two schemas are decoded; one of a third schema, one without an id and a null one are passed on."""
    stores.create("sales", "doubled", "unknown-sales")
    strange = [b"\0\0\0\0\x09{}", b"\0\0\0\7", b"{}", b"", None]
    given = [b'\0\0\0\0\x07{"pieces":1}', b'\0\0\0\0\x08{"pieces":2,"price":5}', *strange]
    frame = spark.createDataFrame([(b"k", one) for one in given], "key binary, value binary")
    frame.write.format("txnframework").options(metadata=stores.url, topic="sales").mode("append").save()
    recipe("Avro or protobuf with a schema id")
    with txnframework.blocking.open({"metadata": {"url": stores.url}, "ledger": {"url": stores.url}}) as client:
        assert sorted(message.value for message in client.reader("doubled")) == [
            b'\0\0\0\0\x08{"pieces":2,"price":1}',
            b'\0\0\0\0\x08{"pieces":4,"price":5}',
        ]
        assert Counter(message.value for message in client.reader("unknown-sales")) == Counter(strange)


def test_a_schema_id_has_four_bytes(spark: SparkSession) -> None:
    numbers = [0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF]
    row = spark.range(1).select([schema_id(with_schema_id(number, lit(b"x"))) for number in numbers])
    assert list(row.first()) == numbers
