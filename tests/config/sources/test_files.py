"""Configurations in files and directories that somebody edits, swaps or writes at this moment."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import WAIT_SECONDS

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.settings import Settings
from nonet.config.sources import Source, files as module, open_source, source as base
from nonet.config.sources.source import MAX_BYTES, MAX_FILES


def source_of(path: Path, check: Callable[[Config], object] | None = None) -> Source:
    return open_source(str(path), Settings(), check)


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """Edits that happen one by one, each right after the source has read the file."""
    edits: list[Callable[[], object]] = []
    look = module.snapshot

    def look_then_edit(path: Path) -> module._Look:
        seen = look(path)
        if edits:
            edits.pop(0)()
        return seen

    monkeypatch.setattr(module, "snapshot", look_then_edit)
    yield edits
    assert not edits, "the source did not read often enough"


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A file has no revision."""
    file = tmp_path / "config.yaml"
    source = source_of(file)
    for vo in ("lhcb", "gridpp"):
        file.write_text(f"vos: [{vo}]")
        config = await source.read()
        assert (config.vos, config.source) == ([vo], str(file))
    assert (source.name, source.poll_seconds) == (str(file), 0.5)
    assert source.revision == ""


async def test_a_half_written_file_is_not_read(
    tmp_path: Path, between_looks: list[Callable[[], object]]
) -> None:
    """The first half never holds, even if it is a valid configuration by itself."""
    file = tmp_path / "config.yaml"
    file.write_text("vos: [before]")
    source = source_of(file)
    await source.read()
    file.write_text("vos: [half]")
    between_looks += [
        lambda: file.write_text(""),
        lambda: file.unlink(),
        lambda: file.write_text("vos: [half]"),
        lambda: file.write_text("vos: [half, whole]"),
    ]
    assert (await source.read()).vos == ["half", "whole"]


async def test_a_file_that_keeps_changing_is_not_read(
    tmp_path: Path, between_looks: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read fails; the next one finds the last content."""
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.01)
    file = tmp_path / "config.yaml"
    file.write_text("vos: [a]")
    source = source_of(file)
    texts = iter(f"vos: [v{n}]" for n in range(11))
    between_looks += [lambda: file.write_text(next(texts))] * 11
    with pytest.raises(ConfigurationError, match=r"config\.yaml: .*it keeps changing"):
        await source.read()
    assert (await source.read()).vos == ["v10"]


async def test_a_bad_file_is_an_error_until_it_is_good(tmp_path: Path) -> None:
    """Every read reports the reason."""
    file = tmp_path / "config.yaml"
    source = source_of(file)
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: None, "No such file"),
        (lambda: file.write_text("vos: [lhcb"), r"config\.yaml:\d"),
        (lambda: file.write_bytes(b"vos: [\xff]"), "is not UTF-8"),
        (lambda: file.write_text(""), "is empty"),
    ]
    for spoil, reason in bad:
        spoil()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=reason):
                await source.read()
    file.write_text("vos: [lhcb]")
    assert (await source.read()).vos == ["lhcb"]


async def test_each_content_is_checked_once(tmp_path: Path) -> None:
    """The check does not run again, whether it refused the content or not."""
    file = tmp_path / "config.yaml"
    judged: list[list[str]] = []

    def check(config: Config) -> None:
        judged.append(config.vos)
        if config.vos == ["bad"]:
            raise ConfigurationError("bad is not known here")

    source = source_of(file, check)
    file.write_text("vos: [good]")
    first = await source.read()
    assert await source.read() is first
    file.write_text("vos: [bad]")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not known here"):
            await source.read()
    assert judged == [["good"], ["bad"]]


ENTRY = "common: {periodic-tasks: {T: [{%s}]}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ENTRY % f"args: {{a: 0x{'f' * 6000}}}", "cannot be published"),
        (ENTRY % f"args: {{a: {'[' * 280}{']' * 280}}}", "nested more than 100"),
        (ENTRY % f"catch-up: 0x{'f' * 6000}", "c.yaml"),
        ('"\\ud800": 1', "c.yaml"),
    ],
    ids=["huge", "deep", "huge choice", "surrogate"],
)
async def test_unusable_yaml_is_an_error_that_can_be_printed(
    tmp_path: Path, text: str, reason: str
) -> None:
    """It is reported like any other mistake, with its file."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as raised:
        await source_of(file).read()
    assert str(raised.value).startswith(str(file))
    assert str(raised.value).encode()


@pytest.mark.parametrize(
    "error",
    [
        KeyError("odd \ud800"),
        SystemExit("odd"),
        StopIteration("odd"),
        asyncio.CancelledError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["check", "thread"])
async def test_code_of_authors_may_raise_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, place: str
) -> None:
    """The read ends, and reports the kind of the error as a mistake."""
    file = tmp_path / "c.yaml"
    file.write_text("vos: [lhcb]")

    def fail(*_: object) -> Config:
        raise error

    if place == "thread":
        monkeypatch.setattr(base, "_parse", fail)
    source = source_of(file, fail if place == "check" else None)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(ConfigurationError, match=f"{type(error).__name__}: .*odd") as raised:
            await source.read()
    assert str(raised.value).encode()


async def test_a_broken_path_is_an_error(tmp_path: Path) -> None:
    """A link to itself and a path with NUL name the reason."""
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "..data").symlink_to("..data")
    (tmp_path / "link").symlink_to("link")
    for path in (tmp_path / "mount", tmp_path / "link"):
        with pytest.raises(ConfigurationError, match="Too many levels of symbolic links"):
            await source_of(path).read()
    with pytest.raises(ConfigurationError, match="cannot be read: ValueError: embedded null byte"):
        await source_of(tmp_path / "a\0b").read()


async def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    """It is refused without waiting for a writer, even in a directory."""
    os.mkfifo(tmp_path / "config.yaml")
    for path in (tmp_path / "config.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match=r"config\.yaml: .*not a regular file"):
            await source_of(path).read()


async def test_no_more_than_four_mebibytes_are_read(tmp_path: Path) -> None:
    """A wrong path must not fill the memory; the files of a directory count together."""
    half = b"#" * (MAX_BYTES // 2)
    (tmp_path / "a.yaml").write_bytes(half + b"##")
    (tmp_path / "b.yaml").write_bytes(half)
    with pytest.raises(ConfigurationError, match="larger than 4 MiB in sum"):
        await source_of(tmp_path).read()
    with pytest.raises(ConfigurationError, match="not a regular file"):
        await source_of(Path("/dev/zero")).read()


async def test_no_more_than_a_thousand_files_are_read(tmp_path: Path) -> None:
    """The error says how many there are."""
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(ConfigurationError, match=r"has 1001 .* files, 1000 at most"):
        await source_of(tmp_path).read()


async def test_a_directory_is_merged(tmp_path: Path) -> None:
    """Its *.yaml and *.yml count, in the order of their names; hidden and other files do not."""
    texts = {"b.yml": "vos: [b]", "a.yaml": "common: {}", ".c.yaml": "x", "d.txt": "x"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "directory.yaml").mkdir()
    source = source_of(tmp_path)
    assert (await source.read()).vos == ["b"]
    (tmp_path / "a.yaml").write_text("vos: [a]")
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/b\.yml.*vos.*also defined in"):
        await source.read()
    for file in ("a.yaml", "b.yml"):
        (tmp_path / file).unlink()
    with pytest.raises(ConfigurationError, match=r"no \*\.yaml or \*\.yml file"):
        await source.read()


class Mount:
    """A directory as Kubernetes mounts a ConfigMap."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._version: Path | None = None

    def swap(self, files: dict[str, str]) -> None:
        """Replace all files at once, as the kubelet does; links to files come last."""
        count = int(self._version.name.rpartition("_")[2]) + 1 if self._version else 0
        version = self.path / f"..2026_{count}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text)
        (self.path / "..data_tmp").symlink_to(version.name)
        (self.path / "..data_tmp").rename(self.path / "..data")
        for name in files:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for file in self.path.iterdir():
            if not file.name.startswith("..") and file.name not in files:
                file.unlink()
        if self._version:
            shutil.rmtree(self._version)
        self._version = version


async def test_a_mounted_directory_is_followed(tmp_path: Path) -> None:
    """Files change, come and go with a swap; errors name the file that people see."""
    mount = Mount(tmp_path / "mount")
    source, one = source_of(mount.path), source_of(mount.path / "a.yaml")
    mount.swap({"a.yaml": "vos: [v0]"})
    assert (await source.read()).vos == (await one.read()).vos == ["v0"]
    mount.swap({"a.yaml": "vos: [v1]", "b.yaml": "common: {}"})
    assert (await source.read()).vos == (await one.read()).vos == ["v1"]
    mount.swap({"b.yaml": "vos: [v2]"})
    assert (await source.read()).vos == ["v2"]
    mount.swap({"b.yaml": "vas: [v3]"})
    with pytest.raises(ConfigurationError, match=rf"{mount.path}/b\.yaml"):
        await source.read()


async def test_files_beside_a_mount_count_too(tmp_path: Path) -> None:
    """A file, or a link to a file there, in such a directory is part of the configuration."""
    mount = Mount(tmp_path / "mount")
    mount.swap({"a.yaml": "vos: [v0]"})
    (mount.path / "elsewhere").write_text("common: {limits: {}}")
    (mount.path / "b.yaml").symlink_to("elsewhere")
    (mount.path / "c.yaml").write_text("vos: [twice]")
    with pytest.raises(ConfigurationError, match=r"c\.yaml.*also defined in .*a\.yaml"):
        await source_of(mount.path).read()


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "inner/../../secret"])
async def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    """A writer to the directory cannot make an error quote another file of the scheduler."""
    directory = tmp_path / "conf"
    (directory / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_text("vos: [hunter2]")
    (directory / "a.yaml").write_text("vos: [v1]")
    (directory / "b.yaml").symlink_to(target)
    with pytest.raises(ConfigurationError, match=r"b\.yaml: this link leads out"):
        await source_of(directory).read()
    (directory / "b.yaml").unlink()
    (directory / "b.yaml").symlink_to("inner/c")
    (directory / "inner" / "c").write_text("common: {limits: {}}")
    assert (await source_of(directory).read()).vos == ["v1"]


def test_a_version_that_is_being_removed_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of files that a swap made shorter is dropped, even if each file could be read."""
    mount = Mount(tmp_path / "mount")
    mount.swap({"a.yaml": "0", "b.yaml": "0"})
    files = module._files

    def list_then_swap(directory: Path, mounted: Path | None) -> Iterator[Path]:
        monkeypatch.setattr(module, "_files", files)
        (first, _) = list(files(directory, mounted))
        content = first.read_text()
        mount.swap({"a.yaml": "1", "b.yaml": "1"})
        first.parent.mkdir()
        first.write_text(content)
        yield first

    monkeypatch.setattr(module, "_files", list_then_swap)
    found = module.snapshot(mount.path)
    assert [content for _, content in found.documents] == [b"1", b"1"]


@pytest.mark.parametrize("kind", ["mount", "link"])
def test_two_versions_are_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All files of a snapshot are of one version, wherever in the middle they are swapped."""
    mount, link = Mount(tmp_path / "mount"), tmp_path / "link"
    names = [f"{n}.yaml" for n in range(4)]

    def swap(version: int) -> None:
        files = dict.fromkeys(names, str(version))
        if kind == "mount":
            mount.swap(files)
            return
        directory = tmp_path / f"v{version}"
        directory.mkdir()
        for name, text in files.items():
            (directory / name).write_text(text)
        (tmp_path / "next").symlink_to(directory)
        (tmp_path / "next").rename(link)
        shutil.rmtree(tmp_path / f"v{version - 1}", ignore_errors=True)

    read, versions = module._read, itertools.count(1)

    def read_then_swap(*args: Any) -> bytes:
        content = read(*args)
        if next(reads) == swapped_at:
            swap(next(versions))
        return content

    monkeypatch.setattr(module, "_read", read_then_swap)
    swap(0)
    for swapped_at in range(len(names)):
        reads = itertools.count()
        found = module.snapshot(mount.path if kind == "mount" else link)
        contents = [content for _, content in found.documents]
        assert contents == contents[:1] * len(names), swapped_at


@pytest.mark.parametrize("text", ["https://t0ken@host/x.git#main", "file:///etc/x", "ext::sh://x"])
def test_another_scheme_is_refused(text: str) -> None:
    """The error says what to write, and shows no secret."""
    with pytest.raises(ConfigurationError, match=r"NONET_CONFIG: .*git\+https://") as raised:
        open_source(text, Settings())
    assert "t0ken" not in str(raised.value)
