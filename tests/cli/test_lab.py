"""What the commands of the lab print and advise."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from anisoscope.cli import app

TINY = ["--layers", "2", "--width", "16", "--heads", "2", "--context", "16", "--batch", "4", "--steps", "2"]


def run(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done


def advised(done: Result) -> dict[str, str]:
    """The commands that were advised, by their name."""
    lines = [line.split(None, 1) for line in done.stderr.splitlines() if " anisoscope " in line]
    return {name: command.strip() for name, command in lines}


@pytest.mark.parametrize("tracked", [True, False])
def test_every_command_that_is_advised_after_a_training_works(tracked: bool, tmp_path: Path) -> None:
    words = ["lab", "train", *TINY, "--out", str(tmp_path / "a run"), *([] if tracked else ["--no-track"])]
    commands = advised(run(*words))
    assert set(commands) == ({"report", "measure"} if tracked else {"measure"})  # nothing was measured yet
    few: dict[str, list[str]] = {"report": [], "measure": ["--metrics", "mean_cosine", "--tokens", "600"]}
    for name, command in commands.items():
        run(*shlex.split(command)[1:], *few[name])


def test_a_complete_training_is_shown_again_with_how_to_train_again(tmp_path: Path) -> None:
    words = ["lab", "train", *TINY, "--no-track", "--out", str(tmp_path / "run")]
    first = run(*words)
    assert "--overwrite" not in first.stderr
    again = run(*words)
    assert "Trained before. To train again, add --overwrite." in again.stderr
    validation = [line.split()[3] for line in first.stdout.splitlines() if line.split()[:1] == ["run"]]
    assert validation == [line.split()[3] for line in again.stdout.splitlines() if line.split()[:1] == ["run"]]


def test_overwritten_twins_are_trained_again(tmp_path: Path) -> None:
    words = ["lab", "twins", *TINY, "--switch", "norm_at=pre,post", "--no-track", "--out", str(tmp_path)]
    run(*words)
    done = run(*words, "--width", "8", "--overwrite")
    assert "Trained before" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "data", "norm_at-post"]
