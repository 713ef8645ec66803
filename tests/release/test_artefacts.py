"""What is in the wheel, the sdist and the SBOM that are published."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from release.conftest import ROOT, build, script

PACKAGES = ("nonet", "nonet_worker", "pytest_nonet")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_in(tree: Path) -> set[str]:
    return {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()}


def test_the_wheel_has_the_files_of_the_packages_and_no_other(tree: Path, wheel: Path) -> None:
    """Scripts, migrations and py.typed, too; no tests, benchmarks or files that lie about."""
    metadata = {name for name in files_of(wheel) if ".dist-info/" in name}
    wanted = set().union(
        *({f"{name}/{file}" for file in files_in(tree / "src" / name)} for name in PACKAGES)
    )
    assert files_of(wheel) - metadata == wanted
    assert {"nonet/py.typed", "nonet/stores/scripts/settle.lua"} <= wanted
    assert any(name.startswith("nonet/stores/sql/migrations/versions/0001") for name in wanted)
    assert {name.partition("/")[2] for name in metadata} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_the_sdist_is_the_repository(tree: Path, sdist: Path) -> None:
    """All that is tracked, so that tests and documentation can be run and built of it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == files_in(tree)
    assert {"LICENSE", "tests/conftest.py", "uv.lock"} <= names


def test_both_say_the_same_of_themselves(tree: Path, wheel: Path, sdist: Path) -> None:
    """In a form that an index accepts."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        told = archive.read(name)
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None and file.read() == told
    metadata = Metadata.from_email(told, validate=True)
    assert (metadata.name, str(metadata.version)) == (PROJECT["name"], PROJECT["version"])
    assert metadata.description == (tree / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE"])
    assert set(metadata.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert BytesParser().parsebytes(told)["Requires-Python"] == PROJECT["requires-python"]


def test_each_python_of_the_classifiers_is_allowed() -> None:
    """And the oldest that is allowed is among them."""
    classifiers = PROJECT["classifiers"]
    named = [text.rpartition(" ")[2] for text in classifiers if ":: Python :: 3." in text]
    assert named == sorted(named)
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert not any("License ::" in text for text in classifiers), "license says it"


def test_a_second_build_has_the_same_bytes(tree: Path, dist: Path, tmp_path: Path) -> None:
    """Anyone can build it again and compare."""
    again = tmp_path / "again"
    build(tree, again)
    names = sorted(file.name for file in dist.iterdir())
    assert sorted(file.name for file in again.iterdir()) == names
    for name in names:
        assert (again / name).read_bytes() == (dist / name).read_bytes(), name


def test_the_sums_are_those_of_the_files(dist: Path) -> None:
    """Of all of them, in the form of sha256sum."""
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert told == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in dist.iterdir()
        if file.name != "SHA256SUMS"
    }


def test_the_sbom_names_what_is_installed_and_no_tools(tree: Path, dist: Path) -> None:
    """Each dependency of the package and of its extras, with the version of uv.lock."""
    (file,) = dist.glob("*.cdx.json")
    bom = json.loads(file.read_text())
    locked = tomllib.loads((tree / "uv.lock").read_text())["package"]
    versions = {(item["name"], item.get("version")) for item in locked}
    named = {(item["name"], item["version"]) for item in bom["components"]}
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["name"] == "nonet"
    assert named <= versions
    for wanted in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        assert {Requirement(text).name for text in wanted} <= {name for name, _ in named}
    assert not {name for name, _ in named} & {"pytest", "mypy", "ruff", "hypothesis"}


def test_each_place_names_the_same_version() -> None:
    """Its home is pyproject.toml."""
    lines = script("version.py").stdout.splitlines()
    told = {place: version for version, place in map(str.split, lines)}
    assert told.keys() >= {"uv.lock", "pyproject.toml", "charts/nonet/Chart.yaml"}
    assert set(told.values()) == {PROJECT["version"]}
