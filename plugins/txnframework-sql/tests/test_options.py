"""The options that a configuration may set for each kind of database."""

from __future__ import annotations

import msgspec
import pytest

from txnframework_sql import LedgerOptions, MetadataOptions
from txnframework_sql._options import with_defaults
from txnframework_sql.plugin import txnframework_ledger_stores, txnframework_metadata_stores

KINDS = {provider.name: provider.options for provider in txnframework_metadata_stores()}
LEDGER_KINDS = {provider.name: provider.options for provider in txnframework_ledger_stores()}


@pytest.mark.parametrize("kinds", [KINDS, LEDGER_KINDS])
@pytest.mark.parametrize(
    ("name", "option"), [("sqlite", "connections_max"), ("sqlite", "group_bytes_max"), ("postgresql", "poll_ms")]
)
def test_option_of_the_other_database_is_refused(
    kinds: dict[str, type[msgspec.Struct]], name: str, option: str
) -> None:
    """An option that does not apply to the kind of database is refused like an unknown one."""
    with pytest.raises(msgspec.ValidationError, match=f"unknown field `{option}`"):
        msgspec.convert({option: 1}, kinds[name])


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_options_of_both(name: str) -> None:
    """Applicable options are used within their bounds; omitted ones have their defaults."""
    own = {"sqlite": {"poll_ms": 7}, "postgresql": {"connections_max": 7}}[name]
    given = {"lock_timeout_ms": 5, "group_max": 3, **own}
    assert with_defaults(msgspec.convert(given, KINDS[name]), MetadataOptions) == MetadataOptions(**given)
    assert with_defaults(msgspec.convert(given, LEDGER_KINDS[name]), LedgerOptions) == LedgerOptions(**given)
    assert with_defaults(None, MetadataOptions) == MetadataOptions()
    with pytest.raises(msgspec.ValidationError, match="lock_timeout_ms"):
        msgspec.convert({"lock_timeout_ms": 0}, KINDS[name])
