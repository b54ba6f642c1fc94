"""The folder of exports: what readers see of it at every step, and how far it remembers to have come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from txnframework.errors import InvalidInput, UnknownFormat
from txnframework.model import Position
from txnframework_spark.errors import ExportConflict, UnusableFolder
from txnframework_spark.jobs import export_folder as exports
from txnframework_spark.jobs.export import require_shared
from txnframework_spark.jobs.export_folder import Exported, ExportFolder

SEGMENT = "segment://public/default/orders/0000-ffff-0"


def exported(number: int, rows: int = 1) -> Exported:
    return Exported(
        store="store",
        topic="topic://public/default/orders",
        life=1,
        number=number,
        upto={SEGMENT: f"{number}:7"},
        messages=rows,
        created_ms=1,
    )


def stage(folder: ExportFolder, number: int, values: list[int], token: str = "a") -> Path:
    staged = folder.staged(number, token)
    staged.mkdir(parents=True)
    pq.write_table(pa.table({"value": values}), staged / "part-0.parquet")
    return staged


def visible(folder: ExportFolder) -> list[int]:
    """Return what a reader of Parquet finds, who knows nothing of exports."""
    found = ds.dataset(folder.path, format="parquet", partitioning="hive").to_table()
    return sorted(found["value"].to_pylist()) if found.num_rows else []


def test_an_export_appears_at_once_and_remembers_how_far_it_came(tmp_path: Path) -> None:
    """Nothing of it is seen before, all of it afterwards; the next one begins where it ended."""
    folder = ExportFolder.of(str(tmp_path / "orders"))
    assert folder.last() is None
    staged = stage(folder, 1, [1, 2])
    assert visible(folder) == []
    assert folder.last() is None
    folder.finish(staged, exported(1))
    assert visible(folder) == [1, 2]
    last = folder.last()
    assert last == exported(1)
    assert last is not None
    assert last.positions() == {SEGMENT: Position(1, 7)}
    folder.finish(stage(folder, 2, [3]), exported(2))
    assert visible(folder) == [1, 2, 3]
    assert folder.last() == exported(2)


def test_of_two_exports_of_one_number_one_finishes(tmp_path: Path) -> None:
    """The other export gets an error, also if its files are gone by then, and its files are never visible."""
    folder = ExportFolder.of(str(tmp_path))
    late, later = stage(folder, 1, [7], "late"), stage(folder, 1, [8], "later")
    folder.finish(stage(folder, 1, [1]), exported(1))
    with pytest.raises(ExportConflict, match="run it again"):
        folder.finish(late, exported(1))
    folder.clean(1)
    assert not later.exists()
    with pytest.raises(ExportConflict):
        folder.finish(later, exported(1))
    assert visible(folder) == [1]
    assert folder.last() == exported(1)


def test_what_was_left_behind_goes_when_it_cannot_finish_any_more(tmp_path: Path) -> None:
    """Files of an unfinished number may belong to an active export, so they remain."""
    folder = ExportFolder.of(str(tmp_path))
    old, next_one = stage(folder, 1, [1]), stage(folder, 2, [2])
    folder.clean(1)
    assert (old.exists(), next_one.exists()) == (False, True)


@pytest.mark.parametrize("at", ["_sync", "rename", "after"])
def test_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """All of it is there or nothing, and the next export knows which."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    folder = ExportFolder.of(str(tmp_path))
    staged = stage(folder, 1, [1])
    if at == "rename":
        monkeypatch.setattr(Path, "rename", killed)
    elif at == "_sync":
        monkeypatch.setattr(exports, "_sync", killed)
    else:
        rename: Callable[..., object] = Path.rename
        monkeypatch.setattr(Path, "rename", lambda *given: (rename(*given), killed()))
    with pytest.raises(Killed):
        folder.finish(staged, exported(1))
    monkeypatch.undo()
    assert visible(folder) == ([1] if at == "after" else [])
    assert folder.last() == (exported(1) if at == "after" else None)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    """One sentence names the folder and says what to do."""
    with pytest.raises(UnusableFolder, match="s3a://bucket/orders is not a folder of a file system"):
        ExportFolder.of("s3a://bucket/orders")
    (tmp_path / "file").touch()
    with pytest.raises(UnusableFolder, match="is a file; use a folder"):
        ExportFolder.of(str(tmp_path / "file"))
    with pytest.raises(UnusableFolder, match="contains file, which is not an export"):
        ExportFolder.of(str(tmp_path)).last()
    assert ExportFolder.of(f"file://{tmp_path}/a").path == tmp_path / "a"
    folder = ExportFolder.of(str(tmp_path / "orders"))
    folder.finish(stage(folder, 1, [1]), exported(1))
    about = folder.path / "export=1" / "_exported.json"
    about.write_text('{"format": 2}')
    with pytest.raises(UnknownFormat, match="2"):
        folder.last()
    about.unlink()
    with pytest.raises(UnusableFolder, match=r"_exported\.json"):
        folder.last()


def test_files_that_are_elsewhere_are_missed(tmp_path: Path) -> None:
    """Executors with separate folders write files that cannot be found; a retry only counts more."""
    require_shared(tmp_path, rows=5, messages=5)
    with pytest.raises(InvalidInput, match=r"executors wrote 5 messages, but .* contains 3 of them"):
        require_shared(tmp_path, rows=5, messages=3)
