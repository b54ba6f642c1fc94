"""The readme's example runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example makes its file where it says, and can be run again."""
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    for _ in range(2):
        exec(compile(example, str(README), "exec"), {})
    assert (tmp_path / "data" / "txn.db").is_file()
