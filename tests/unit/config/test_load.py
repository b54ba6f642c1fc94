from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.pretty import Pretty

from txnframework.config import DEFAULT_STORE_URL, Config, load_config
from txnframework.errors import ConfigurationError


def written(directory: Path, text: str) -> Path:
    path = directory / "txn.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_is_the_embedded_default() -> None:
    """Without a file, both stores are one local database and segments are of the metadata family."""
    config = load_config()
    assert config.metadata.url == config.ledger.url == DEFAULT_STORE_URL == "sqlite:///txnframework-data/txn.db"
    assert config.domain("a/b", "segment").coordinator == "metadata"
    assert config.domain("a/b", "topic") == config.domain("a/b", "segment")
    assert config.domain("a/b", "persistent").buffer == "marker"


def test_file_path_and_table_mean_the_same(tmp_path: Path) -> None:
    """A path, its text and its table are equivalent."""
    path = written(tmp_path, '[metadata]\nurl = "memory:"\n[transactions]\ntimeout_ms = 5_000\n')
    table = {"metadata": {"url": "memory:"}, "transactions": {"timeout_ms": 5000}}
    assert load_config(path) == load_config(str(path)) == load_config(table)
    assert load_config(path).transactions.timeout_ms == 5000


def test_ledger_follows_the_metadata_store() -> None:
    """Without a ledger store, ledgers are stored with the metadata."""
    assert load_config({"metadata": {"url": "memory:"}}).ledger.url == "memory:"
    both = load_config({"metadata": {"url": "a://h"}, "ledger": {"url": "b://h", "options": {"x": 1}}})
    assert (both.ledger.url, both.ledger.options) == ("b://h", {"x": 1})


def test_partial_tables_keep_the_other_defaults() -> None:
    """Naming one plugin of a domain does not require the other two."""
    config = load_config({"domains": {"persistent": {"buffer": "sidecar"}}})
    domain = config.domain("a/b", "persistent")
    assert (domain.coordinator, domain.buffer, domain.pending_ack) == ("log", "sidecar", "log")


def test_namespace_overrides_one_domain() -> None:
    """An override changes what it names, in its namespace and domain only."""
    config = load_config({"namespaces": {"public/default": {"persistent": {"buffer": "sidecar"}}}})
    assert config.domain("public/default", "persistent").buffer == "sidecar"
    assert config.domain("public/default", "persistent").coordinator == "log"
    assert config.domain("public/default", "segment").buffer == "metadata"
    assert config.domain("public/other", "persistent").buffer == "marker"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"metdata": {}},
            "unknown key 'metdata'; did you mean 'metadata'? (allowed: backlog_quota, buffers, client, coordinators, "
            "dispatchers, domains, ledger, metadata, namespaces, observers, pending_acks, retention, subscriptions, "
            "transactions)",
        ),
        (
            {"domains": {"segment": {"bufer": "x"}}},
            "domains.segment: unknown key 'bufer'; did you mean 'buffer'? (allowed: buffer, coordinator, pending_ack)",
        ),
        ({"domains": {"segment": {"buffer": 3}}}, "domains.segment.buffer: expected a string, found 3"),
        (
            {"domains": {"segment": {"buffer": ""}}},
            "domains.segment.buffer: expected a string of length >= 1, found ''",
        ),
        ({"domains": {"segment": "x"}}, "domains.segment: expected a table, found 'x'"),
        (
            {"transactions": {"timeout_ms": "5 s"}},
            "transactions.timeout_ms: expected an integer, found '5 s'",
        ),
        ({"transactions": {"timeout_ms": True}}, "transactions.timeout_ms: expected an integer, found true"),
        ({"transactions": {"timeout_ms": 0}}, "transactions.timeout_ms: expected an integer >= 1, found 0"),
        ({"transactions": {"timeout_ms": [1]}}, "transactions.timeout_ms: expected an integer, found an array"),
        (
            {"transactions": {"timeout_ms": 10, "timeout_ms_max": 9}},
            "transactions: timeout_ms (10) is longer than timeout_ms_max (9)",
        ),
        (
            {"namespaces": {"public/default": {"segment": {"buffer": 1}}}},
            'namespaces."public/default".segment.buffer: expected a string, found 1',
        ),
        ({"namespaces": {"public": {}}}, "namespaces.public: invalid namespace: write tenant/namespace"),
        (
            {"backlog_quota": {"messages": 0}},
            "backlog_quota.messages: 0 would refuse every message; write -1 for no limit, or a number >= 1",
        ),
        (
            {"namespaces": {"public/default": {"backlog_quota": {"bytes": 0}}}},
            'namespaces."public/default".backlog_quota.bytes: 0 would refuse every message; write -1 for no limit, '
            "or a number >= 1",
        ),
        ({"buffers": {"marker": 1}}, "buffers.marker: expected a table, found 1"),
        (
            {"metadata": {"url": ["x://u:sesame@h"]}},
            "metadata.url: expected a string, found an array",
        ),
        (
            {"client": {"linger_ms": "x://u:sesame@h"}},
            "client.linger_ms: expected an integer, found 'x://u:***@h'",
        ),
    ],
)
def test_error_names_path_finding_and_what_is_allowed(table: dict[str, Any], sentence: str) -> None:
    """One sentence has the path as written in the file, the found value, and the allowed ones."""
    with pytest.raises(ConfigurationError) as caught:
        load_config(table)
    assert str(caught.value) == sentence


def test_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    """The message starts with the file name; its parts are attributes."""
    path = written(tmp_path, "[domains.segment]\nbuffer = 3\n")
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: domains.segment.buffer: expected a string, found 3"
    assert (caught.value.file, caught.value.path) == (str(path), "domains.segment.buffer")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[metadata]\nurl = \n", 2, "invalid TOML: invalid value"),
        ("[metadata\n", 1, "invalid TOML: expected ']' at the end of a table declaration"),
        ('[metadata]\n\nurl = "memory:\n', 3, "invalid TOML: illegal character"),
        ("a = 1\nb = [1,\n", 2, "invalid TOML: "),
        ("a = 1\na = 2\n", 2, "invalid TOML: cannot overwrite a value"),
    ],
)
def test_syntax_error_names_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    """The error for invalid TOML is one sentence with the line."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: line {line}: {reason}")
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file, a directory, and binary data each raise one sentence, with the cause."""
    with pytest.raises(
        ConfigurationError, match=r"none\.toml: file not found; 'txnframework init' writes one$"
    ) as caught:
        load_config(tmp_path / "none.toml")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ConfigurationError, match="cannot read the file: Is a directory"):
        load_config(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"a = 1\nb = '\xe4'\n")
    with pytest.raises(ConfigurationError, match=r"latin\.toml: line 2: invalid TOML: not UTF-8 text"):
        load_config(latin)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("sqlite:///none.db", "sqlite:///none.db"),
        ("memory:", "memory:"),
        ("postgresql://u:sesame@h/d", "postgresql://u:***@h/d"),
        (Path("postgresql://u:sesame@h/d"), "postgresql:***@h/d"),
    ],
)
def test_a_url_is_no_configuration_file(source: Path | str, shown: str) -> None:
    """The sentence says where the URL belongs, and quotes it without its password."""
    with pytest.raises(ConfigurationError) as caught:
        load_config(source)
    assert str(caught.value).startswith(f"{shown}: this is a URL")
    assert "under [metadata]" in str(caught.value)
    assert "{'metadata': {'url': 'URL'}}" in str(caught.value)


def test_printing_a_configuration_shows_no_secret() -> None:
    """A configuration may be logged: its text has no password of a URL and no value of an option."""
    config = load_config({"metadata": {"url": "x://u:sesame@h/d", "options": {"password": "sesame"}}})
    assert "sesame" not in repr(config)
    assert "x://u:***@h/d" in repr(config)
    assert config.metadata.url == "x://u:sesame@h/d"


def test_configurations_are_values() -> None:
    """Equal texts give equal, immutable configurations."""
    assert load_config({}) == load_config()
    with pytest.raises(AttributeError):
        Config().client = None  # type: ignore[misc, assignment]


@pytest.mark.parametrize("number", [2**62 + 1, -(2**63), 10**5_000], ids=("2^62", "negative", "5,000 digits"))
def test_number_that_no_store_holds(number: int) -> None:
    """The error names the key, also for numbers that Python does not print in digits."""
    with pytest.raises(ConfigurationError, match=r"^transactions\.retention_ms: found .*between -2\*\*62 and 2\*\*62$"):
        load_config({"transactions": {"retention_ms": number}})


def test_file_with_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    """A number that Python's reader refuses raises our own error."""
    path = tmp_path / "txnframework.toml"
    path.write_text(f"[transactions]\nretention_ms = {'9' * 5_000}\n")
    with pytest.raises(ConfigurationError, match="a number has too many digits"):
        load_config(path)


def test_nothing_printed_of_a_configuration_is_secret() -> None:
    """Neither ``repr`` nor rich shows secrets in URLs or in options."""
    secret = "pL4inS3cret"
    config = load_config(
        {
            "metadata": {"url": f"postgresql://user:{secret}@host/db", "options": {"password": secret}},
            "coordinators": {"third-party": {"token": secret}},
            "buffers": {"third-party": {"nested": {"token": secret}}},
        }
    )
    shown = io.StringIO()
    Console(file=shown, width=200).print(config, config.metadata, config.ledger, Pretty(config))
    for text in (repr(config), str(config.metadata), repr([config.ledger]), f"{config}", shown.getvalue()):
        assert secret not in text
    assert "postgresql://user:***@host/db" in repr(config)
    assert "third-party" in repr(config)
