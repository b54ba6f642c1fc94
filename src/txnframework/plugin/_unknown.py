"""The error for an unknown plugin name, with the probably intended name and what to install."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources import files

from txnframework.errors import UnknownPlugin
from txnframework.tables import nearest


def unknown_plugin(role: str, name: str, installed: Iterable[str]) -> UnknownPlugin:
    """
    Return the error for ``name``, with the nearest name and, if known, the distribution that provides it.

    A distribution is named only from the list of this release, never derived from the given name: installing what a
    misspelling leads to would run a stranger's code.
    """
    names = set(installed)
    distributions = _distributions(role)
    meant = name.lower() if name.lower() in distributions else nearest(name, names | set(distributions))
    if meant is None:
        return UnknownPlugin(role, name, names, "; 'txnframework plugins' lists all that is installed")
    guess = "" if meant == name else f"; did you mean {meant!r}?"
    if meant in names:
        return UnknownPlugin(role, name, names, guess)
    brought = f"{'; it' if not guess else ' It'} comes with: pip install {distributions[meant]}"
    return UnknownPlugin(role, name, names, guess + brought, distributions[meant])


def _distributions(role: str) -> dict[str, str]:
    text = files("txnframework.plugin").joinpath("known_distributions.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return table.get(role, {})
