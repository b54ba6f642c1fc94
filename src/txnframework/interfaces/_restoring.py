"""IRestorable: what a store can do that an operator restored from a backup."""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IRestorable(Interface):
    """
    A metadata store or ledger store that can take a new identity, so that it never again passes for what it was.

    Only the operator's command after a restore calls it, while nobody else has the stores open. Of the two stores the
    ledger store is first: until the metadata store has followed, opening the pair is refused.
    """

    identity: str = Attribute("The identity that it has now.")

    async def take_identity(identity: str) -> None:
        """
        Have another identity from now on, also at later openings: of a ledger store, that of the metadata store that it
        belongs to.

        Repeating it is safe. What else has the store open keeps the identity that it read when it was opened.

        :raises OutcomeUnknown: repeat it.
        """
