"""The location of the stores: options of both source and sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnframework.config import redact_url

STORE_OPTIONS: Final = ("config", "metadata", "ledger")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The location of the stores; hashable, so that a process opens each host once."""

    config: str | None = None
    metadata: str | None = None
    ledger: str | None = None

    def __repr__(self) -> str:
        """Return the options without passwords."""
        urls = [None if url is None else redact_url(url) for url in (self.metadata, self.ledger)]
        return f"{type(self).__name__}(config={self.config!r}, metadata={urls[0]!r}, ledger={urls[1]!r})"

    def source(self) -> str | dict[str, object] | None:
        """Return the argument for ``txnframework.config.load_config``."""
        if self.config is not None:
            return self.config
        if self.metadata is None:
            return None
        table: dict[str, object] = {"metadata": {"url": self.metadata}}
        if self.ledger is not None:
            table["ledger"] = {"url": self.ledger}
        return table
