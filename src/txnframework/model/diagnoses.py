"""What a store finds out about itself for ``txnframework doctor``."""

from __future__ import annotations

import msgspec


class Diagnosis(msgspec.Struct, frozen=True, gc=False):
    """
    Something that makes a store slow, or will fill it, though it answers.

    ``found``: a clause that says what, without secrets. ``remedy``: a clause that says what to do.
    """

    found: str
    remedy: str
