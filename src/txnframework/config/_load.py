"""Loading of the configuration from a file, a table, or nothing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from txnframework.config._sections import BacklogQuotaOverride, BacklogQuotaSection, Config
from txnframework.errors import ConfigurationError, InvalidInput
from txnframework.tables import KeyPath, decode
from txnframework.urls import check_no_url


def load_config(source: Path | str | Mapping[str, object] | None = None) -> Config:
    """
    Return the configuration in ``source``: the path of a TOML file, a table with the content of such a file, or None.

    None is the embedded default: one database in ``./txnframework-data``. A store's relative path is relative to the
    working directory of the process, not to the file. This function does not look at the installed plugins;
    ``check_config`` does.

    :raises ConfigurationError: the file cannot be read or is not TOML; the error names file and line. Or a
        value is invalid; the error names the path in the file, the value, and what is allowed.
    :raises InvalidInput: ``source`` is none of these.
    """
    if source is None:
        return _resolved(Config())
    if not isinstance(source, Path | str | Mapping):
        raise InvalidInput(f"invalid configuration {source!r}: expected the path of a file, or a table")
    if isinstance(source, Mapping):
        place = KeyPath()
        table: Mapping[str, object] = source
    else:
        place = KeyPath(file=str(source))
        check_no_url(str(source))
        table = parse_toml(Path(source), "file not found; 'txnframework init' writes one")
    config = decode(table, Config, place)
    for name in config.namespaces:
        if not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
            raise (place / "namespaces" / name).error("invalid namespace: write tenant/namespace")
    _check_quota(config.backlog_quota, place / "backlog_quota")
    for name, namespace in config.namespaces.items():
        _check_quota(namespace.backlog_quota, place / "namespaces" / name / "backlog_quota")
    return _resolved(config)


def _check_quota(quota: BacklogQuotaSection | BacklogQuotaOverride, place: KeyPath) -> None:
    """Refuse a bound of 0: a backlog is never smaller, so a topic with a subscription would accept no message."""
    for key, bound in (("messages", quota.messages), ("bytes", quota.bytes)):
        if bound == 0:
            raise (place / key).error("0 would refuse every message; write -1 for no limit, or a number >= 1")


def _resolved(config: Config) -> Config:
    """Fill in the values that default to another value, so that no other code needs the rule."""
    if config.ledger.url:
        return config
    ledger = msgspec.structs.replace(config.ledger, url=config.metadata.url)
    return msgspec.structs.replace(config, ledger=ledger)


def parse_toml(path: Path, if_missing: str = "file not found") -> dict[str, object]:
    """Return the tables of a TOML file; ConfigurationError names the file, and the line if it is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise ConfigurationError("", if_missing, str(path)) from exc
    except OSError as exc:
        raise ConfigurationError("", f"cannot read the file: {exc.strerror or exc}", str(path)) from exc
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise ConfigurationError(f"line {line}", "invalid TOML: not UTF-8 text", str(path)) from exc
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        line, reason = _syntax(str(exc), text)
        raise ConfigurationError(f"line {line}", f"invalid TOML: {reason}", str(path)) from exc
    except ValueError as exc:  # a number of thousands of digits
        raise ConfigurationError("", "invalid TOML: a number has too many digits", str(path)) from exc
    except RecursionError as exc:
        raise ConfigurationError("", "invalid TOML: nested too deeply", str(path)) from exc


def _syntax(message: str, text: str) -> tuple[int, str]:
    """Return the line and the reason of a parser's message, which holds both in one text."""
    reason, _, where = message.rpartition(" (at ")
    found = re.match(r"line (\d+)", where)
    line = int(found[1]) if found else max(1, len(text.splitlines()))
    if twice := re.fullmatch(r"Cannot declare \((.*)\) twice", reason):
        name = ".".join(part.strip(" '\"") for part in twice[1].split(",") if part.strip())
        return line, f"duplicate table [{name}]"
    # The parser quotes only keys and single characters, never values: its message cannot contain a password.
    return line, f"{reason[:1].lower()}{reason[1:]}" if reason else message
