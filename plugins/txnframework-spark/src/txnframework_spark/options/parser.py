"""Options as Spark passes them, read by name and type; every error is one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from txnframework.config import redact_url
from txnframework.errors import InvalidInput, InvalidName, excerpt
from txnframework.model.names import TOPIC, TopicName, check_known_name, check_new_name
from txnframework_spark.errors import InvalidOption, UnknownOption

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


_SPARK_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself adds to those of a sink."""

INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 30

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class OptionParser:
    """Options by lower-case name; errors show the documented spelling."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], where: str) -> None:
        lower = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in lower and name.lower() not in _SPARK_OWN:
                raise UnknownOption(name, known, where)
        self._given = {name.lower(): value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        """Return the option's text, None if it is absent; an empty value raises InvalidOption."""
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidOption(name, "it is empty")
        return value

    def required(self, name: str, meaning: str) -> str:
        """Return a mandatory option; ``meaning`` describes it in the error."""
        value = self.text(name)
        if value is None:
            raise InvalidOption(name, f"it is missing; it names {meaning}")
        return value

    def new_name(self, name: str, what: str) -> str | None:
        """Return a name that may be stored for the first time, None if it is absent."""
        return self._checked_name(name, what, check_new_name)

    def known_name(self, name: str, what: str) -> str | None:
        """Return a name that an earlier release may have stored, None if it is absent."""
        return self._checked_name(name, what, check_known_name)

    def _checked_name(self, name: str, what: str, check: Callable[[object, str], str]) -> str | None:
        value = self.text(name)
        try:
            return None if value is None else check(value, what)
        except InvalidInput as error:
            raise InvalidOption(name, str(error)) from error

    def one_of(self, name: str, allowed: tuple[str, ...], otherwise: str = "") -> str | None:
        """Return one of ``allowed``, in lower case, None if absent; ``otherwise`` names alternatives in the error."""
        value = self.text(name)
        if value is not None and value.lower() not in allowed:
            raise InvalidOption(name, f"{excerpt(value)} is not one of {', '.join(allowed)}{otherwise}")
        return None if value is None else value.lower()

    def number(self, name: str, least: int = 1, unit: str = "") -> int | None:
        """Return a whole number of at least ``least``, None if it is absent; ``unit`` is shown in the error."""
        value = self.text(name)
        if value is None:
            return None
        digits = value.strip()
        # A number with more digits exceeds every limit, and Python refuses to parse thousands of digits.
        if not digits.isdecimal() or len(digits) > _DIGITS_MAX or not least <= int(digits) <= INT64_MAX:
            raise InvalidOption(
                name, f"{excerpt(value)} is not a whole number of at least {least}{unit}, with at most 63 bits"
            )
        return int(digits)

    def duration_ms(self, name: str) -> int | None:
        """Return a duration such as ``500ms``, ``30s`` or ``15m`` in milliseconds, None if it is absent."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"([1-9][0-9]{0,9})\s*(ms|s|m|h)", value.strip())
        if found is None:
            raise InvalidOption(name, f"{excerpt(value)} is not a duration such as 500ms, 30s, 15m or 1h")
        return int(found[1]) * _UNITS_MS[found[2]]

    def flag(self, name: str) -> bool | None:
        """Return whether the option is ``true``, None if it is absent."""
        value = self.one_of(name, ("true", "false"))
        return None if value is None else value == "true"

    def stores(self) -> StoreOptions:
        """Return the location of the stores."""
        config = self.text("config")
        if config is not None:
            # Resolved here, in the driver: a worker may have another working directory.
            config = str(Path(config).expanduser().absolute())
        stores = StoreOptions(config, self.text("metadata"), self.text("ledger"))
        if stores.config is not None and (stores.metadata or stores.ledger):
            raise InvalidOption("config", "the file already names the stores; remove metadata and ledger")
        if stores.ledger is not None and stores.metadata is None:
            raise InvalidOption("ledger", "it requires the option metadata")
        return stores


@dataclass(frozen=True, slots=True)
class Option:
    """
    An option: how it is read, and its row in the reference, ``docs/reference/spark-options.md``.

    ``read``: from its parser and its name, None if it is absent. ``only``: the one kind of query that accepts it, and
    why others do not. ``default``: as the reference shows it; None: the table has no such column.
    """

    name: str
    read: Callable[[OptionParser, str], Any]
    meaning: str
    default: str | None = ""
    only: str = ""

    @property
    def row(self) -> str:
        """The row of the reference."""
        cells = [f"`{self.name}`", *([] if self.default is None else [self.default]), self.meaning]
        return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def option(
    name: str,
    read: Callable[[OptionParser, str], Any],
    meaning: str,
    default: str | None = "",
    *,
    value: Any = None,
    only: str = "",
) -> Any:
    """Return a field of a dataclass that is read from an option; ``value``: if the option is absent."""
    return field(default=value, metadata={"option": Option(name, read, meaning, default, only)})


def options_of(kind: type[Any]) -> Iterator[tuple[str, Option]]:
    """Yield the options that a dataclass declares, by the names of its fields."""
    for one in fields(kind):
        if "option" in one.metadata:
            yield one.name, one.metadata["option"]


def read_declared(kind: type[Any], options: OptionParser) -> dict[str, Any]:
    """Return the values of the options that a dataclass declares, by field, without those that are absent."""
    values = {name: declared.read(options, declared.name) for name, declared in options_of(kind)}
    return {name: value for name, value in values.items() if value is not None}


def parse_topic(option: str, text: str) -> TopicName:
    """Return the scalable topic that ``text`` names, or raise InvalidOption."""
    try:
        topic = TopicName.parse(text.strip())
    except InvalidName as error:
        raise InvalidOption(option, str(error)) from error
    if topic.domain != TOPIC:
        raise InvalidOption(option, f"{topic} is not a topic:// topic; only those can be read and written by Spark")
    return topic
