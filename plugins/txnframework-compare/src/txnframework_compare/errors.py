"""Exceptions of this distribution."""

from __future__ import annotations

from txnframework.config import redact_url
from txnframework.errors import InvalidInput


class UnusableOption(InvalidInput):
    """
    The value of ``option`` is invalid.

    :known: Nothing was measured.
    :retry: never
    :advice: Correct the option; the text says what is allowed.
    """

    code = "COMPARE-101"

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        super().__init__(f"{option}: {reason}")


class UnusableBackend(InvalidInput):
    """
    No stores for the families can be created at this URL.

    :known: Nothing was measured.
    :retry: never
    :advice: Use a URL at which both families can create stores.
    """

    code = "COMPARE-102"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{redact_url(url)}: {reason}")
