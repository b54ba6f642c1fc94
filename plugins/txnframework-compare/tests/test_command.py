"""The command as a person meets it: over memory and SQLite, with sizes that only say whether it runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from txnframework.broker.coordinators.coordinators import HostParticipants
from txnframework.cli import main
from txnframework.model.ids import TxnID
from txnframework.model.transactions import Participant, Transaction
from txnframework_compare.families import FAMILIES
from txnframework_compare.measures import MEASURES

SMALL = ("--quick", "--rounds", "1", "--participants", "2,1", "--finished", "3,2")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints, and has printed nothing else."""
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one sentence with which the command refuses."""
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def figure(document: dict[str, Any], measure: str, family: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in document["measures"] if one["name"] == measure]
    results = [one for one in found["results"] if one["family"] == family]
    (taken,) = [one for one in results[-1]["figures"] if one["name"] == name]
    return dict(taken)


def test_everything_as_json_with_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every measure of every family at every size, with units and rounds, and a picture of each measure."""
    plots = tmp_path / "new" / "plots"
    printed = shown(capsys, "--backend", "memory:", *SMALL, "--output", "json", "--plots", str(plots))
    document = json.loads(printed)
    assert list(document) == ["format", "measured", "backend", "machine", "workload", "families", "measures"]
    assert (document["format"], document["backend"]) == (2, {"backend": "memory:", "ledger": None})
    assert [one["name"] for one in document["families"]] == list(FAMILIES)
    assert [one["name"] for one in document["measures"]] == list(MEASURES)
    sizes = {one["name"]: (one["size"], {each["size"] for each in one["results"]}) for one in document["measures"]}
    assert sizes["ending"] == ("participants", {1, 2})
    assert sizes["recovery"] == ("finished transactions", {2, 3})
    assert sizes["writes"] == (None, {None})
    for measure in document["measures"]:
        for result in measure["results"]:
            assert set(result) == {"family", "size", "cannot", "figures"}
            assert (result["cannot"] is None) == bool(result["figures"])
            for one in result["figures"]:
                assert set(one) == {"name", "unit", "median", "rounds", "cannot"}
                assert (one["median"] is None) == (one["rounds"] == []) == (one["cannot"] is not None)
    assert sorted(path.name for path in plots.iterdir()) == sorted(f"{name}.png" for name in MEASURES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())


def test_a_sealed_segment_over_sqlite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The log-driven families cannot end there, after the time that is configured; the metadata-driven one commits."""
    (tmp_path / "mine.db").write_bytes(b"somebody's own")
    url = f"sqlite:///{tmp_path}/mine.db"
    document = json.loads(shown(capsys, "--backend", url, *SMALL, "--measures", "sealed,writes", "--output", "json"))
    for family in ("log", "log-batched", "sidecar"):
        assert "EndTransactionTimeout" in figure(document, "sealed", family, "commit")["cannot"]
        assert figure(document, "sealed", family, "took")["median"] > 200
        assert figure(document, "sealed", family, "readable")["median"] == 1
    assert figure(document, "sealed", "metadata", "commit")["cannot"] is None
    assert figure(document, "sealed", "metadata", "readable")["median"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.db"], "every store is removed, and nothing else"
    assert (tmp_path / "mine.db").read_bytes() == b"somebody's own"


def test_a_sealed_segment_where_nobody_is_told_in_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is readable does not depend on how much of it a slow machine does before the call of commit gives up."""
    settle = HostParticipants.settle
    tried: set[tuple[Participant, TxnID]] = set()

    async def late(participants: HostParticipants, participant: Participant, ended: Transaction) -> None:
        if (participant, ended.txn_id) not in tried:
            tried.add((participant, ended.txn_id))
            await asyncio.Event().wait()
        await settle(participants, participant, ended)

    monkeypatch.setattr(HostParticipants, "settle", late)
    asked = ("--backend", "memory:", "--measures", "sealed", "--families", "log,sidecar")
    document = json.loads(shown(capsys, *asked, *SMALL, "--output", "json"))
    assert tried
    for family in ("log", "sidecar"):
        assert "EndTransactionTimeout" in figure(document, "sealed", family, "commit")["cannot"]
        assert figure(document, "sealed", family, "readable")["median"] == 1


def test_tables_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Each table is followed by an explanation; a cell shows why a family cannot be measured."""
    printed = shown(capsys, *SMALL, "--measures", "ending,sealed", "--families", "metadata,log")
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.count("As a multiple of metadata") + printed.count("as a multiple of metadata") == 2
    assert "cannot: EndTransactionTimeout" in " ".join(printed.split())
    for said in ("Ending a transaction: commit, ms", "participants:", "1", "2", "metadata", "log"):
        assert said in printed


def test_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The other format, of one measure."""
    asked = ("--measures", "concurrent", "--plots", str(tmp_path), "--plot-format", "svg")
    shown(capsys, "--backend", "memory:", *SMALL, *asked)
    (path,) = tmp_path.iterdir()
    assert path.name == "concurrent.svg"
    assert "transactions per second" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--families", "log,nobody"), "--families: unknown family 'nobody'; known: log, "),
        (("--measures", "speed"), "--measures: unknown measure 'speed'; known: ending, "),
        (("--participants", "1,many"), "--participants: 'many' is not a count; write numbers such as 1,10,100"),
        (("--finished", "0"), "--finished: '0' is not a count; write numbers such as 1,10,100"),
        (("--backend", "mysql://me:secret@host/db"), "mysql://me:***@host/db: each family needs stores of its own; "),
        (("--backend", "sqlite:////nowhere/at/all.db"), "sqlite:////nowhere/at/all.db: directory not found: /nowhere"),
        (("--backend", "embedded-oracle"), "no embedded server named 'oracle' is installed (installed: "),
    ],
)
def test_what_was_typed_is_refused(capsys: pytest.CaptureFixture[str], typed: tuple[str, ...], said: str) -> None:
    """In one sentence that names it, before anything is measured; and passwords are not shown."""
    assert refused(capsys, *typed).startswith(f"Error: {said}")


def test_plots_need_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is measured, with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refused(capsys, "--plots", "/nowhere") == (
        "Error: --plots: matplotlib is not installed: pip install 'txnframework-compare[plots]'"
    )


def test_plots_need_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One that can be made."""
    (tmp_path / "file").touch()
    said = refused(capsys, "--plots", str(tmp_path / "file" / "plots"))
    assert said == f"Error: --plots: {tmp_path}/file/plots: not a directory"
