"""What a configuration may say for which kind of database."""

from __future__ import annotations

import msgspec
import pytest

from txnframework_sql import LedgerOptions, MetadataOptions
from txnframework_sql._options import completed
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
    """An option that means nothing for the database is refused, as one that nobody knows."""
    with pytest.raises(msgspec.ValidationError, match=f"unknown field `{option}`"):
        msgspec.convert({option: 1}, kinds[name])


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_options_of_both(name: str) -> None:
    """What means something is taken as it stands, within its bounds; what is not given has its default."""
    own = {"sqlite": {"poll_ms": 7}, "postgresql": {"connections_max": 7}}[name]
    given = {"lock_timeout_ms": 5, "group_max": 3, **own}
    assert completed(msgspec.convert(given, KINDS[name]), MetadataOptions) == MetadataOptions(**given)
    assert completed(msgspec.convert(given, LEDGER_KINDS[name]), LedgerOptions) == LedgerOptions(**given)
    assert completed(None, MetadataOptions) == MetadataOptions()
    with pytest.raises(msgspec.ValidationError, match="lock_timeout_ms"):
        msgspec.convert({"lock_timeout_ms": 0}, KINDS[name])
