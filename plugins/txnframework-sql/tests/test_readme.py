"""The README's example runs, and its tables name the existing options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from txnframework_sql import LedgerOptions, MetadataOptions

README = Path(__file__).parents[1] / "README.md"


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example creates its file at the stated place, and can be run again."""
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for _ in range(2):
        exec(compile(example, str(README), "exec"), {})
    assert (tmp_path / "data" / "txn.db").is_file()


def test_options() -> None:
    """The tables name every option, and no others."""
    rows = re.findall(r"^\| (`[^|]*`) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        *MetadataOptions.__struct_fields__,
        *LedgerOptions.__struct_fields__,
    }
