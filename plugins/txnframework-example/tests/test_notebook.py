"""What the suite cannot know of a notebook: its file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from txnframework.errors import Corrupt, OutcomeUnknown, Unavailable, UnknownFormat
from txnframework.interfaces import IDurableStore, IMetadataStore, ISharedStore
from txnframework.model import Expect, Key, Put, Reach
from txnframework.plugin import StoreContext, load_plugins, verify_provider
from txnframework.testing import VirtualEnvironment
from txnframework_example import Notebook, NotebookStore, plugin
from txnframework_example.plugin import Notebooks, open_store


def put(notebook: Notebook, *paths: str) -> None:
    """Write records through a client."""

    async def run() -> None:
        store = NotebookStore(notebook, VirtualEnvironment())
        for path in paths:
            await store.put(Put(Key(path), b"value", Expect.ANY))
        await store.close()

    asyncio.run(run())


def opened(directory: Path) -> Notebook:
    return Notebook(directory / "book.jsonl", VirtualEnvironment())


def test_found_by_its_scheme() -> None:
    """The entry point's module provides ``notebook``, and the class keeps the role's contract and says what it is."""
    found = load_plugins([plugin]).metadata_store("notebook")
    verify_provider(IMetadataStore, found)
    assert IDurableStore.implementedBy(NotebookStore)
    assert NotebookStore.reach is Reach.PARTITION
    assert not ISharedStore.implementedBy(NotebookStore)


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    """A line that was cut off by a crash was never confirmed; the lines before it remain."""
    notebook = opened(tmp_path)
    put(notebook, "/a")
    notebook.close()
    with (tmp_path / "book.jsonl").open("ab") as file:
        file.write(b'[{"path":"/b","number":99,"value":"')
    notebook = opened(tmp_path)
    assert notebook.get(Key("/a")) is not None
    assert notebook.get(Key("/b")) is None
    notebook.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A file that is open is refused to anybody else, by name; when it was closed it can be opened."""
    first = opened(tmp_path)
    with pytest.raises(Unavailable, match=r"book\.jsonl is open in another process"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    """Another format, and a damaged line, are refused and left as they are."""
    file = tmp_path / "book.jsonl"
    head = b'{"format":2,"identity":"book","number":3}\n'
    for data, error in (
        (head.replace(b"2", b"1", 1), UnknownFormat),
        (head + b"scribble\n", Corrupt),
        (b"scribble\n", Corrupt),
    ):
        file.write_bytes(data)
        with pytest.raises(error, match=r"book\.jsonl"):
            opened(tmp_path)
        assert file.read_bytes() == data


def test_opening_leaves_out_what_is_no_longer_true(tmp_path: Path) -> None:
    """The file grows with what is there, not with what has happened; versions go on where they were."""
    notebook = opened(tmp_path)
    put(notebook, *["/a", "/b"] * 50)
    version = notebook.head.number
    notebook.close()
    notebook = opened(tmp_path)
    assert len((tmp_path / "book.jsonl").read_bytes().splitlines()) == 3
    assert notebook.next_number() > version
    notebook.close()


def test_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails may stand in the file: OutcomeUnknown; nothing is written behind it until it is reopened."""
    notebook = opened(tmp_path)
    put(notebook, "/a")

    def full(file: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OutcomeUnknown, match="no space left"):
            put(notebook, "/b")
    with pytest.raises(Unavailable, match="open it again"):
        put(notebook, "/c")
    notebook.close()
    notebook = opened(tmp_path)
    assert [notebook.get(Key(path)) is not None for path in ("/a", "/c")] == [True, False]
    put(notebook, "/c")
    notebook.close()


def test_clients_of_one_file_share_it(tmp_path: Path) -> None:
    """Clients of one process see one notebook, under any spelling of its path; the last one gives the file back."""
    notebooks, environment = Notebooks(), VirtualEnvironment()

    async def run() -> None:
        (tmp_path / "sub").mkdir()
        first = notebooks.client(tmp_path / "book.jsonl", environment)
        second = notebooks.client(tmp_path / "sub" / ".." / "book.jsonl", environment)
        assert first.session != second.session
        await first.put(Put(Key("/a"), b"x", Expect.ABSENT))
        assert await second.get(Key("/a")) is not None
        await first.close()
        await second.close()
        notebooks.close_unused()

    asyncio.run(run())
    opened(tmp_path).close()


@pytest.mark.parametrize("url", ["notebook:", "notebook://host/a", "notebook:///", "notebook:///a?b"])
def test_bad_urls(url: str) -> None:
    """A URL that names no file is refused with what it should be."""
    with pytest.raises(Exception, match="notebook:///path/to/file"):
        asyncio.run(open_store(StoreContext(url, VirtualEnvironment())))
