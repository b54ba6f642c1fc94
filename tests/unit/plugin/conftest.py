from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that makes an installed distribution: its metadata, entry point and one module."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def add(distribution: str, source: str, *, entry_point: str | None = None, version: str = "1.2.3") -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[txnframework]\n{entry_point or module} = {module}\n")
        importlib.invalidate_caches()

    yield add
    for name in set(sys.modules) - before:
        if name.startswith("zz_"):
            del sys.modules[name]
