"""The one type with which a subscription is used at a time: the leases of its consumers name it."""

from __future__ import annotations

from txnframework.broker.coordination import Holder
from txnframework.errors import Conflict


def require_type(subscription: str, wanted: str, holder: Holder) -> None:
    """
    Raise Conflict if ``holder`` uses the subscription with another type than the wanted one.

    With two types the order of messages would be lost. After all its consumers have left, a subscription may be used
    with another type.
    """
    used = holder.subscription_type
    if used not in ("", wanted):
        raise Conflict(
            f"{holder.process or holder.session} uses subscription {subscription} as {used}; "
            f"open the consumer with type={used!r}, or after all others have left"
        )
