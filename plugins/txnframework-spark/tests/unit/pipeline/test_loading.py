"""What stands in a pipeline's file: typed, or one sentence that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnframework.errors import ConfigurationError
from txnframework_spark.pipeline.loader import load_pipeline, sink_options, source_options

WHOLE = """
[pipeline]
name = "pricing"
checkpoint = "checkpoint"
trigger = "available_now"

[spark]
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 2, "spark.ui.enabled" = false }

[stores]
metadata = "postgresql://me:secret@there/db"

[[sources]]
view = "orders"
subscribe = ["orders", "returns"]
group_id = "pricing"
watermark = { column = "timestamp", delay = "10 minutes" }
options = { maxOffsetsPerTrigger = 100, failOnDataLoss = false }

[transform]
sql = "SELECT key, value FROM orders"

[[sinks]]
topic = "priced"
options = { transactionTimeoutMs = 1000 }

[[sinks]]
topic = "alerts"
where = "key IS NULL"
"""


def refused(directory: Path, *changes: tuple[str, str]) -> str:
    """Return the sentence by which the file with these changes is refused, without the file's own name."""
    text = WHOLE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = directory / "pipeline.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_what_spark_is_told(tmp_path: Path) -> None:
    """Options in Spark's spelling; the name is the application, and all sinks are one."""
    path = tmp_path / "pipeline.toml"
    path.write_text(WHOLE, encoding="utf-8")
    told = load_pipeline(path)
    stores = {"metadata": "postgresql://me:secret@there/db"}
    assert source_options(told, told.sources[0]) == {
        **stores,
        "subscribe": "orders,returns",
        "groupId": "pricing",
        "maxOffsetsPerTrigger": "100",
        "failOnDataLoss": "false",
    }
    assert sink_options(told, stateful=True) == {
        **stores,
        "txnAppId": "pricing",
        "txnAppReset": "false",
        "txnAppStateful": "true",
        "transactionTimeoutMs": "1000",
    }
    assert sink_options(told, stateful=False, reset=True)["txnAppReset"] == "true"
    path.write_text(WHOLE.replace("transactionTimeoutMs = 1000", "transactional = false"), encoding="utf-8")
    assert sink_options(load_pipeline(path), stateful=True) == {**stores, "transactional": "false"}


def test_secrets_are_not_in_what_is_logged(tmp_path: Path) -> None:
    """Neither the password of a URL nor the value of a setting."""
    path = tmp_path / "pipeline.toml"
    path.write_text(WHOLE.replace('"spark.ui.enabled" = false', '"spark.ssl.keyPassword" = "hidden"'), encoding="utf-8")
    told = repr(load_pipeline(path))
    assert "secret" not in told
    assert "hidden" not in told


def test_a_configuration_beside_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without [stores], a pipeline uses the same configuration as other commands; paths given to Spark are absolute."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pipeline.toml"
    path.write_text(WHOLE.replace("[stores]\nmetadata", "[stores]\n# metadata"), encoding="utf-8")
    assert "config" not in source_options(load_pipeline(path), load_pipeline(path).sources[0])
    (tmp_path / "txnframework.toml").touch()
    assert sink_options(load_pipeline(path), stateful=False)["config"] == str(tmp_path / "txnframework.toml")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("group_id", "groop_id"), "sources[0]: unknown key 'groop_id'; did you mean 'group_id'?"),
        (("[transform]", "[transfrom]"), "unknown key 'transfrom'; did you mean 'transform'?"),
        (("maxOffsetsPerTrigger", "maxOffsetPerTrigger"), "did you mean maxOffsetsPerTrigger?"),
        (("maxOffsetsPerTrigger", "groupId"), "sources[0].options.groupId: cannot be set here; use group_id"),
        (("transactionTimeoutMs", "txnAppId"), "sinks[0].options.txnAppId: cannot be set here; use [pipeline]"),
        (("= 1000", "= -1"), "sinks: option transactionTimeoutMs"),
        (('"available_now"', '"continuous"'), "pipeline: trigger continuous has no batches"),
        (('"available_now"', '"availablenow"'), "did you mean 'available_now'?"),
        (('"available_now"', '"processing_time"\ninterval = "often"'), "interval 'often' is not a duration"),
        (('"10 minutes"', '"ten"'), "sources[0].watermark: delay 'ten' is not a duration"),
        (('"orders", "returns"', '"orders", "orders"'), "sources[0]: option subscribe: it names a topic twice"),
        (('topic = "alerts"', 'topic = "persistent://public/default/alerts"'), "sinks[1]: option topic: persistent"),
        (('topic = "alerts"', 'topic = "alerts"\nframe = "x"'), "sinks[1].frame: requires transform.python"),
        (('"spark.ui.enabled"', '"spark.master"'), 'spark.conf."spark.master": cannot be set here; use [spark]'),
        (("sql =", "sequel ="), "transform: unknown key 'sequel'; did you mean 'sql'?"),
        (("sql =", 'python = "a:b"\nsql ='), "transform: expected either sql or python"),
        (('metadata = "', 'config = "a.toml"\nmetadata = "'), "stores: config already names the stores"),
        (
            ('where = "key IS NULL"', "options = { transactionTimeoutMs = 2000 }"),
            "sinks[1].options.transactionTimeoutMs: sinks[0] has a different value",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_is_said_with_its_place(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    """Unknown keys with the nearest one; options as the source and the sink judge them."""
    assert sentence in refused(tmp_path, change)


def test_stores_of_a_cluster_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default each machine would make some in its own folder."""
    monkeypatch.chdir(tmp_path)
    unnamed = ("[stores]\nmetadata", "[stores]\n# metadata")
    assert refused(tmp_path, unnamed, ("local[2]", "spark://a:1")).startswith("stores: is missing: on spark://a:1,")
    (tmp_path / "txnframework.toml").touch()
    assert load_pipeline(tmp_path / "pipeline.toml").spark.master == "spark://a:1"


def test_sources_that_would_take_from_each_other(tmp_path: Path) -> None:
    """One subscription of one topic is read once in a query; one name on two topics are two subscriptions."""
    other = '\n[[sources]]\nview = "again"\nsubscribe = "TOPIC"\ngroup_id = "pricing"\n\n[transform]'
    said = refused(tmp_path, ("[transform]", other.replace("TOPIC", "returns")))
    assert said.startswith(
        "sources[1].group_id: sources[0] already reads topic://public/default/returns with 'pricing'"
    )
    same_view = other.replace("TOPIC", "payments").replace('"again"', '"Orders"')
    assert "is already the view of sources[0]" in refused(tmp_path, ("[transform]", same_view))
    path = tmp_path / "pipeline.toml"
    path.write_text(WHOLE.replace("[transform]", other.replace("TOPIC", "payments")), encoding="utf-8")
    assert len(load_pipeline(path).sources) == 2
    path.write_text(WHOLE.replace("[transform]", other.replace("TOPIC", "payments")).replace('sql = "', '# "'))
    with pytest.raises(ConfigurationError, match="transform: expected either"):
        load_pipeline(path)
