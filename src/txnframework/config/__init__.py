"""
The configuration: one TOML file, decoded into typed values, each with a default.

``load_config`` reads a file, a table or nothing. ``check_config`` compares the result with the installed plugins.
``render_config`` writes the defaults as a commented file. ``parse_toml``, ``decode`` and ``KeyPath`` are public, so
that errors about files of plugins have the same form.
"""

from __future__ import annotations

from txnframework.config._check import check_config
from txnframework.config._load import load_config, parse_toml
from txnframework.config._render import render_config
from txnframework.config._sections import (
    DEFAULT_STORE_URL,
    BacklogQuotaSection,
    ClientSection,
    Config,
    DomainSection,
    LedgerSection,
    MetadataSection,
    RetentionSection,
    SubscriptionsSection,
)
from txnframework.plugin import TransactionsSection
from txnframework.tables import KeyPath, decode
from txnframework.urls import is_own_machine, parse_cluster_url, redact_url, store_name

__all__ = [
    "DEFAULT_STORE_URL",
    "BacklogQuotaSection",
    "ClientSection",
    "Config",
    "DomainSection",
    "KeyPath",
    "LedgerSection",
    "MetadataSection",
    "RetentionSection",
    "SubscriptionsSection",
    "TransactionsSection",
    "check_config",
    "decode",
    "is_own_machine",
    "load_config",
    "parse_cluster_url",
    "parse_toml",
    "redact_url",
    "render_config",
    "store_name",
]
