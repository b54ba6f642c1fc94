"""Checks of a configuration's names and options against the installed plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txnframework.config._sections import Config, DomainOverride, DomainSection, DomainsSection
from txnframework.errors import InvalidInput, UnknownPlugin
from txnframework.tables import KeyPath
from txnframework.urls import redact_url, store_name

if TYPE_CHECKING:
    from txnframework.plugin import PluginRegistry, Provider

    Find = Callable[[str], Provider[Any, Any]]


def check_config(config: Config, registry: PluginRegistry, file: str | None = None) -> None:
    """
    Raise ConfigurationError for the first name or option in ``config`` that no installed plugin accepts.

    A domain whose plugins are the defaults is accepted if none of them is installed: it works without transactions, and
    reports that when one is used. A domain needs all of its plugins: if one of the three is installed, the others must
    be, too. The two stores are always needed.
    """
    top = KeyPath(file=file)
    stores: tuple[tuple[str, str, dict[str, object], Find], ...] = (
        ("metadata", config.metadata.url, config.metadata.options, registry.metadata_store),
        ("ledger", config.ledger.url, config.ledger.options, registry.ledger_store),
    )
    for section, url, options, find in stores:
        if section == "ledger" and url == config.metadata.url:
            _require_ledger_in(store_name(url), top / "ledger" / "url", registry)
        provider = _store(url, top / section / "url", find)
        registry.decode_options(provider, options, top / section / "options")
    for section, tables, find in _option_tables(config, registry):
        for name, table in tables.items():
            place = top / section / name
            registry.decode_options(_named(name, place, find), table, place)
    for domain, place, plugins in _domains(config, top):
        _check_domain(plugins, getattr(DomainsSection(), domain), place, registry)


def _store(url: str, place: KeyPath, find: Find) -> Provider[Any, Any]:
    name = store_name(url)
    if not name:
        raise place.error(_no_url(redact_url(url), find))
    provider = _named(name, place, find)
    if provider.check_url is not None:
        try:
            provider.check_url(url)
        except InvalidInput as exc:
            raise place.error(str(exc)) from exc
    return provider


def _no_url(given: str, find: Find) -> str:
    """Return the sentence for a text without the scheme of a URL, with the schemes that can be used here."""
    try:
        find("")
        known: tuple[str, ...] = ()
    except UnknownPlugin as exc:
        known = exc.known
    sentence = f"found {given!r}, expected a URL such as 'scheme://host/path'; the scheme is the name of a store"
    return f"{sentence} ({', '.join(known)})" if known else sentence


def _require_ledger_in(name: str, place: KeyPath, registry: PluginRegistry) -> None:
    """Raise ConfigurationError if the metadata store ``name`` cannot store messages."""
    try:
        registry.ledger_store(name)
    except UnknownPlugin as exc:
        if exc.brought_by is None:
            known = ", ".join(exc.known) or "none"
            raise place.error(f"{name!r} cannot store messages; name a ledger store (installed: {known})") from exc


def _named(name: str, place: KeyPath, find: Find) -> Provider[Any, Any]:
    try:
        return find(name)
    except UnknownPlugin as exc:
        raise place.error(str(exc)) from exc


def _option_tables(
    config: Config, registry: PluginRegistry
) -> Iterator[tuple[str, dict[str, dict[str, object]], Find]]:
    yield "coordinators", config.coordinators, registry.coordinator
    yield "buffers", config.buffers, registry.buffer
    yield "pending_acks", config.pending_acks, registry.pending_ack_store
    yield "dispatchers", config.dispatchers, registry.dispatcher
    yield "observers", config.observers, registry.observer


def _domains(config: Config, top: KeyPath) -> Iterator[tuple[str, KeyPath, DomainSection]]:
    """Yield every choice of plugins in the configuration: for all namespaces, and for each override."""
    for domain in ("segment", "persistent"):
        yield domain, top / "domains" / domain, getattr(config.domains, domain)
        for namespace, overrides in config.namespaces.items():
            if getattr(overrides, domain) != DomainOverride():
                yield domain, top / "namespaces" / namespace / domain, config.domain(namespace, domain)


def _check_domain(plugins: DomainSection, default: DomainSection, place: KeyPath, registry: PluginRegistry) -> None:
    finds: tuple[tuple[str, Find], ...] = (
        ("coordinator", registry.coordinator),
        ("buffer", registry.buffer),
        ("pending_ack", registry.pending_ack_store),
    )
    found: dict[str, Provider[Any, Any]] = {}
    missing: dict[str, UnknownPlugin] = {}
    for key, find in finds:
        name = getattr(plugins, key)
        try:
            found[key] = find(name)
        except UnknownPlugin as exc:
            if name != getattr(default, key):
                raise (place / key).error(str(exc)) from exc
            missing[key] = exc
    if not found:
        return
    for key, unknown in missing.items():
        there = " and ".join(f"{one} {found[one].name!r}" for one in found)
        raise (place / key).error(f"{unknown}; a domain needs all three plugins, and has {there}") from unknown
    coordinator = found["coordinator"]
    for key in ("buffer", "pending_ack"):
        provider = found[key]
        if not provider.families & coordinator.families:
            raise (place / key).error(
                f"{provider.name!r} belongs to family {_listed(provider.families)}, but coordinator "
                f"{coordinator.name!r} belongs to family {_listed(coordinator.families)};"
                " the plugins of a domain must share one"
            )


def _listed(families: frozenset[str]) -> str:
    return ", ".join(repr(family) for family in sorted(families)) or "none"
