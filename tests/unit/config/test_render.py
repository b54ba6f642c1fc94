from __future__ import annotations

import re
import tomllib
from typing import Annotated

import msgspec

from txnframework.config import Config, load_config, render_config


def uncommented(text: str) -> str:
    """Take the '#' from every setting; the samples of tables with free names are left out."""
    return re.sub(r"^# (\w+ = (?!\"sidecar\").*)$", r"\1", text, flags=re.MULTILINE)


def leaves(section: msgspec.Struct, path: str = "") -> set[str]:
    found: set[str] = set()
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, msgspec.Struct):
            found |= leaves(value, f"{path}{field.name}.")
        elif not isinstance(value, dict):
            found.add(f"{path}{field.name}")
    return found


def flattened(table: dict[str, object], path: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in table.items():
        found |= flattened(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}"}
    return found


def test_as_written_it_changes_nothing() -> None:
    """The file that `init` writes is valid and has the defaults."""
    assert load_config(tomllib.loads(render_config())) == load_config()


def test_every_setting_is_there_with_its_default_and_a_comment() -> None:
    """Uncommenting every line gives all settings with their defaults."""
    text = render_config()
    table = tomllib.loads(uncommented(text))
    assert load_config(table) == load_config()
    assert flattened(table) == leaves(Config())
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"# \w+ = ", line):
            assert re.match(r"# [A-Z].*[.]$|# buffer|# [a-z].*[.]$|# \[", lines[number - 1]), lines[number - 1]


def test_installed_names_are_told() -> None:
    """The names that can be chosen are listed beside the setting."""
    text = render_config({"metadata.url": ["b", "a"]})
    assert "# Installed: a, b.\n# url = " in text
    assert text.count("Installed") == 1


class Inner(msgspec.Struct, frozen=True):
    enabled: Annotated[bool, msgspec.Meta(description="Whether.")] = False
    names: tuple[str, ...] = ("a",)


def test_options_of_installed_plugins_are_told() -> None:
    """Options are listed with their table, meaning and default; uncommented, they keep the defaults."""

    class Options(msgspec.Struct):
        records_max: Annotated[int, msgspec.Meta(description="How many.")] = 5_000
        directory: str | None = None
        names: list[str] = []
        inner: Inner = Inner()

    text = render_config(None, {"buffers": {"mine": Options}, "metadata.options": {"store": Options}})
    shown = "\n\n# How many.\n# records_max = 5_000\n\n# directory =\n\n# names = []\n"
    shown += '\n# enabled: Whether.\n# names:\n# inner = { enabled = false, names = ["a"] }\n'
    assert "# [buffers.mine]" + shown in text
    assert "# [metadata.options]  # of store" + shown in text
    assert load_config(tomllib.loads(text)) == load_config()
    taken = uncommented(text).replace("# [buffers.mine]", "[buffers.mine]")
    mine = tomllib.loads(taken)["buffers"]["mine"]
    assert msgspec.convert(mine, Options) == Options()
    assert (mine["records_max"], mine["inner"]) == (5_000, {"enabled": False, "names": ["a"]})
