"""IDiagnosable: a store that finds out what makes it slow."""

from __future__ import annotations

from zope.interface import Interface

from txnframework.model.diagnoses import Diagnosis


class IDiagnosable(Interface):
    """A metadata store that can say what is wrong with its server or files, though it answers."""

    async def diagnose(age_ms_min: int) -> tuple[Diagnosis, ...]:
        """
        Return what makes the store slow, the worst first; nothing is changed.

        :param age_ms_min: what has lasted for a shorter time is left out.
        :raises Unavailable: the store cannot be asked.
        """
