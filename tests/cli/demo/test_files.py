"""What the demo does to files, without servers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nonet.cli.demo.hashing import Found, Hashed, batches, duplicates, hash_file, walk


def test_a_walk_lists_regular_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hard link is listed; symbolic links, FIFOs and sockets are not."""
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    (tree / "deep" / "deeper").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "hidden").write_bytes(b"12")
    (tree / "deep" / "deeper" / "file").write_bytes(b"123")
    os.link(tree / "deep" / "deeper" / "file", tree / "twin")
    (tree / "to-file").symlink_to(tree / "twin")
    (tree / "to-directory").symlink_to(elsewhere)
    (tree / "dangling").symlink_to(tree / "nowhere")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tree)  # the name of a socket may not be long
        server.bind("socket")
        found = walk(os.fsencode(tree), os.fsencode(elsewhere))
    root = os.fsencode(tree)
    assert found.files == [Found(root + b"/deep/deeper/file", 3), Found(root + b"/twin", 3)]
    assert found.closed == []


def test_a_walk_skips_a_directory(tmp_path: Path) -> None:
    """It is skipped under every name by which the tree reaches it."""
    (tmp_path / "tree" / "own").mkdir(parents=True)
    (tmp_path / "tree" / "own" / "log").touch()
    (tmp_path / "alias").symlink_to(tmp_path / "tree")
    own = os.fsencode(tmp_path / "tree" / "own")
    assert walk(os.fsencode(tmp_path / "alias"), own).files == []


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    """It does not end the walk."""
    gone = os.fsencode(tmp_path / "gone")
    assert walk(gone, os.fsencode(tmp_path)).closed == [gone]


paths = st.lists(
    st.builds(Found, st.binary(max_size=4096), st.integers(0, 2**27)),
    max_size=300,
    unique_by=lambda file: file.path,
)


@given(paths)
def test_batches_lose_nothing_and_stay_small(files: list[Found]) -> None:
    """Every path is in one batch, in order; a batch is short in every respect or a single file."""
    size = dict(files)
    made = list(batches(files))
    assert [path for batch in made for path in batch] == [file.path for file in files]
    for batch in made:
        assert 1 <= len(batch) <= 100
        if len(batch) > 1:
            assert sum(map(len, batch)) <= 64 * 1024
            assert sum(size[path] for path in batch) <= 64 * 1024**2


@pytest.mark.parametrize("kind", ["gone", "directory", "fifo", "link"])
def test_only_regular_files_are_hashed(tmp_path: Path, kind: str) -> None:
    """A file that has become something else is an OSError, without waiting for a FIFO's writer."""
    path = tmp_path / "it"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "target").touch()
        path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        hash_file(os.fsencode(path))


def test_reading_can_be_ended_between_chunks(tmp_path: Path) -> None:
    """An error of the callback ends the reading of a long file."""
    path = tmp_path / "long"
    path.write_bytes(bytes(5 << 20))
    calls = iter([None, None])
    with pytest.raises(StopIteration):
        hash_file(os.fsencode(path), lambda: next(calls))


def test_duplicates_are_sorted_and_counted() -> None:
    """Groups and their paths are in the order of the text that JSON shows, odd bytes included."""
    one, two = b"1" * 32, b"2" * 32
    files = [
        Hashed(b"/z", 5, one),
        Hashed("/\U0001f600".encode(), 5, one),  # after the next one as bytes, before it as text
        Hashed(b"/\xff", 5, one),
        Hashed(b"/b", 0, two),
        Hashed(b"/a", 0, two),
        Hashed(b"/alone", 1, b"3" * 32),
    ]
    empty, full = duplicates(files)
    assert (empty.paths, empty.wasted) == ([b"/a", b"/b"], 0)
    assert (full.paths, full.wasted) == ([b"/z", b"/\xff", "/\U0001f600".encode()], 10)
