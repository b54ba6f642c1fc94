"""What commands of plugins open: a client of the stores that a configuration names."""

from __future__ import annotations

from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client

__all__ = ["Loaded", "config_option", "with_client"]
