"""The demo on synthetic clouds."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from anisoscope.cli import app


def test_clouds_have_their_own_demo(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--clouds", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    assert "sphere" in done.stdout
    assert (tmp_path / "clouds.png").stat().st_size > 1000
