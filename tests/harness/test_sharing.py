"""What the processes of one run share is made once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sharing import shared


def test_a_shared_directory_is_made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A second process waits, and gets the same directory when it is complete."""
    made = []
    tmp_path_factory.getbasetemp()  # pytest makes it at the first call, not safe among threads

    def make(place: Path) -> None:
        made.append(place)
        place.mkdir()
        (place / "file").write_text("all of it")

    def ask(_: int) -> str:
        return (shared(tmp_path_factory, "a-test", make) / "file").read_text()

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {"all of it"}
    assert len(made) == 1


def test_a_shared_directory_that_failed_is_made_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Half of it is no reason to think that it is there."""

    def fail(place: Path) -> None:
        place.mkdir()
        raise ValueError

    with pytest.raises(ValueError):
        shared(tmp_path_factory, "another-test", fail)
    assert shared(tmp_path_factory, "another-test", Path.mkdir).is_dir()
