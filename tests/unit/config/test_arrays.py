"""Files of plugins: arrays of tables are decoded like tables."""

from __future__ import annotations

import msgspec
import pytest

from txnframework.config import KeyPath, decode
from txnframework.errors import ConfigurationError


class Item(msgspec.Struct):
    name: str


class Whole(msgspec.Struct):
    items: tuple[Item, ...]
    names: list[str] = []


def test_each_table_of_an_array_is_decoded() -> None:
    found = decode({"items": [{"name": "a"}, {"name": "b"}], "names": ["c"]}, Whole, KeyPath())
    assert found == Whole((Item("a"), Item("b")), ["c"])


def test_an_error_names_the_item() -> None:
    """The error has the item's number in the file, and the nearest key."""
    with pytest.raises(ConfigurationError, match=r"^x.toml: items\[1\]: unknown key 'nam'; did you mean 'name'"):
        decode({"items": [{"name": "a"}, {"nam": "b"}]}, Whole, KeyPath(file="x.toml"))
    with pytest.raises(ConfigurationError, match=r"^items\[0\]\.name: expected a string, found 3"):
        decode({"items": [{"name": 3}]}, Whole, KeyPath())
    with pytest.raises(ConfigurationError, match=r"^items\[0\]: expected a table"):
        decode({"items": ["a"]}, Whole, KeyPath())
