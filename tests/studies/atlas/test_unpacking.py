"""Archives are not trusted: only chosen plain files come out, inside their folder, up to a limit."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.atlas.unpacking import unpack


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def zip_with(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_only_matching_files_are_written(tmp_path: Path) -> None:
    archive = tar_with(tmp_path / "a.tgz", (tarfile.TarInfo("p/a.bin"), b"1"), (tarfile.TarInfo("p/b.txt"), b"2"))
    assert [file.name for file in unpack(archive, ["p/*.bin"], tmp_path / "out")] == ["a.bin"]
    assert not (tmp_path / "out" / "p" / "b.txt").exists()


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "c:\\evil"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    archive = tar_with(tmp_path / "a.tgz", (tarfile.TarInfo(name), b"1"))
    with pytest.raises(InputError, match="leads out"):
        unpack(archive, ["*"], tmp_path / "out")


def test_links_are_skipped(tmp_path: Path) -> None:
    link = tarfile.TarInfo("p/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive = tar_with(tmp_path / "a.tgz", (link, b""), (tarfile.TarInfo("p/file"), b"1"))
    assert [file.name for file in unpack(archive, ["p/*"], tmp_path / "out")] == ["file"]


def test_too_many_bytes_are_refused(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.whl", big=b"0" * 5000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        unpack(archive, ["big"], tmp_path / "out", limit=1000)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_and_a_damaged_archive_are_explained(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.whl", model=b"1")
    with pytest.raises(InputError, match="has no file weights"):
        unpack(archive, ["weights"], tmp_path / "out")
    (tmp_path / "b.tgz").write_bytes(b"not an archive")
    with pytest.raises(InputError, match="cannot be read"):
        unpack(tmp_path / "b.tgz", ["*"], tmp_path / "out2")
