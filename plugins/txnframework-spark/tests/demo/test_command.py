"""The command as a person meets it: bad input is one sentence and exit status 2."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from txnframework.cli import main
from txnframework_spark.demo import command
from txnframework_spark.demo.report import Outcome
from txnframework_spark.demo.run import DemoSettings
from txnframework_spark.demo.stores import StoreUrls
from txnframework_spark.demo.verdict import OutputVerdict

OUTCOME = Outcome("ratings.txt", OutputVerdict(1, {"enriched": 1}, 1, 0, 0, 0, 0, ()), {"enriched": 1}, 0, 1, 1.0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which the command line refuses."""
    assert main(["demo", *arguments]) == 2
    document = capsys.readouterr()
    assert document.out == ""
    lines = document.err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_help_names_every_option() -> None:
    """And what the exit status means."""
    text = CliRunner().invoke(command.demo, ["--help"]).output
    for option in ("--input", "--metadata", "--ledger", "--directory", "--batch-size", "--output"):
        assert option in text
    assert "Exit status: 0" in text


def test_a_missing_input_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its name."""
    path = tmp_path / "missing.csv"
    assert refused(capsys, "--input", str(path)) == f"Error: {path}: cannot be read: no such file or directory"


def test_a_malformed_input_file_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n[]\n', encoding="utf-8")
    document = refused(capsys, "--input", str(path))
    assert document == f"Error: {path}, line 2: expected a JSON object, found an array"


@pytest.mark.parametrize(
    ("home", "document"),
    [
        ("/nowhere", "Spark needs Java, and the one at JAVA_HOME=/nowhere cannot be run"),
        ("old", "Spark needs Java 17 or newer and found 11"),
    ],
)
def test_a_missing_or_old_java_is_refused_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: str, document: str
) -> None:
    """Also before the input is read."""
    if home == "old":
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", encoding="utf-8")
        java.chmod(0o755)
        home = str(tmp_path)
    monkeypatch.setenv("JAVA_HOME", home)
    assert document in refused(capsys, "--input", "missing.csv")


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in it might be needed."""
    (tmp_path / "a").touch()
    document = refused(capsys, "--directory", str(tmp_path))
    assert document == f"Error: the demo cannot use {tmp_path}: it is not empty"


@pytest.mark.parametrize(
    ("option", "url", "document"),
    [
        ("--metadata", "postgrex://user:secret@host/db", "--metadata: no metadata store named 'postgrex' is installed"),
        ("--ledger", "postgrex://user:secret@host/db", "--ledger: no ledger store named 'postgrex' is installed"),
        ("--metadata", "txn.db", "--metadata: found 'txn.db', expected a URL"),
    ],
)
def test_a_store_that_is_not_installed_is_refused(
    capsys: pytest.CaptureFixture[str], option: str, url: str, document: str
) -> None:
    """By the option that names it, and without its password."""
    text = refused(capsys, option, url)
    assert document in text
    assert "secret" not in text


def test_a_store_of_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The pipeline is other processes."""
    assert "exists in one process only" in refused(capsys, "--metadata", "memory:")


@pytest.mark.parametrize("ok", [True, False])
def test_json_is_the_last_line_and_the_status_follows_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ok: bool
) -> None:
    """A temporary directory stays only if something went wrong."""
    places: list[Path] = []

    def pretend(settings: DemoSettings, console: object) -> Outcome:
        places.append(settings.directory)
        assert settings.directory.is_dir()
        return OUTCOME if ok else Outcome("x", OUTCOME.verdict, {}, 0, 0, 0.0, errors=("failed",))

    monkeypatch.setattr(command, "run_demo", pretend)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = CliRunner().invoke(command.demo, ["--output", "json"])
    assert result.exit_code == (0 if ok else 1)
    assert json.loads(result.stdout.splitlines()[-1])["ok"] is ok
    assert len(result.stdout.splitlines()) == 1
    assert places[0].exists() is not ok
    assert ("are kept in" in result.stderr) is not ok


def test_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """embedded-postgresql is started, used for both stores, and gone at the end."""
    used: list[StoreUrls] = []

    def pretend(settings: DemoSettings, console: object) -> Outcome:
        used.append(settings.stores)
        assert can_connect(settings.stores.metadata)
        return OUTCOME

    monkeypatch.setattr(command, "run_demo", pretend)
    result = CliRunner().invoke(command.demo, ["--metadata", "embedded-postgresql", "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (stores,) = used
    assert stores.metadata.startswith("postgresql://")
    assert stores.ledger == stores.metadata
    assert not can_connect(stores.metadata)


def test_a_zookeeper_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """embedded-zookeeper is started and gone at the end; it keeps no messages, so they are in the SQLite file."""
    used: list[StoreUrls] = []

    def pretend(settings: DemoSettings, console: object) -> Outcome:
        used.append(settings.stores)
        assert can_connect(settings.stores.metadata)
        return OUTCOME

    monkeypatch.setattr(command, "run_demo", pretend)
    result = CliRunner().invoke(command.demo, ["--metadata", "embedded-zookeeper", "--directory", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (stores,) = used
    assert stores.metadata.startswith("zookeeper://")
    assert stores.ledger == f"sqlite:///{tmp_path / 'txn.db'}"
    assert not can_connect(stores.metadata)


def can_connect(url: str) -> bool:
    """Whether somebody listens there."""
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    try:
        socket.create_connection((at.hostname, at.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_that_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """The names that there are, are said; other plugins may add some."""
    assert re.search(r"\(installed: [^)]*postgresql", refused(capsys, "--metadata", "embedded-oracle"))
