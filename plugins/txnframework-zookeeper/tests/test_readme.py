"""The table in the README lists the existing options."""

from __future__ import annotations

import re
from pathlib import Path

from txnframework_zookeeper._options import MetadataOptions

README = Path(__file__).parents[1] / "README.md"


def test_options() -> None:
    """The table lists every option, and no unknown one; a number beside an option is its default."""
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)} == {*MetadataOptions.__struct_fields__}
    defaults = MetadataOptions()
    for name, default in rows:
        if default.isdecimal():
            assert getattr(defaults, name.strip("`")) == int(default), name
