"""IRestorable: a store that can take a new identity after a restore from a backup."""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IRestorable(Interface):
    """
    A metadata store or ledger store that can take a new identity, so that it is never mistaken for its former state.

    Only the operator's restore command calls it, while no other process has the stores open. The ledger store is first:
    until the metadata store has followed, opening the pair is refused.
    """

    identity: str = Attribute("The identity that it has now.")

    async def take_identity(identity: str) -> None:
        """
        Take another identity, also for later openings.

        A ledger store takes that of the metadata store to which it belongs. Repeating the call is safe. Other openings
        of the store keep the identity that they read when they were opened.

        :raises OutcomeUnknown: the identity may have changed; repeat the call.
        """
