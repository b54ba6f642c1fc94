"""The readme's example runs as it stands there, and its tables name the options that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from txnframework_sql import LedgerOptions, MetadataOptions

README = Path(__file__).parents[1] / "README.md"


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example makes its file where it says, and can be run again."""
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for _ in range(2):
        exec(compile(example, str(README), "exec"), {})
    assert (tmp_path / "data" / "txn.db").is_file()


def test_options() -> None:
    """The tables name every option, and none that there is not."""
    rows = re.findall(r"^\| (`[^|]*`) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        *MetadataOptions.__struct_fields__,
        *LedgerOptions.__struct_fields__,
    }
