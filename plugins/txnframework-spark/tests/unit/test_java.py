"""A missing or old Java is said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnframework_spark.errors import JavaUnusable
from txnframework_spark.session import check_java, java_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_202"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_major_version_is_read(text: str, version: int | None) -> None:
    assert java_version(text) == version


def fake_java(home: Path, version: str) -> None:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def test_an_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaUnusable, match="17 or newer and found 11") as found:
        check_java()
    assert found.value.found == 11


def test_a_missing_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaUnusable, match="cannot be run"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaUnusable, match="none is installed"):
        check_java()


def test_a_new_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == 21
