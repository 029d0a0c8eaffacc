"""What the commands of the lab print and advise."""

from __future__ import annotations

import json
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "data", "effects.json", "norm_at-post"]


def test_twins_of_two_switches_print_and_store_their_effects(tmp_path: Path) -> None:
    zipf, ends = "text-zipf_vocabulary=50", ("", "-seed-1", "-seed-2")
    design = ["--switch", "norm_at=pre,post", "--switch", "text=topics;zipf:vocabulary=50", "--seeds", "3"]
    words = ["lab", "twins", *TINY, *design, "--no-track", "--out", str(tmp_path)]
    printed = " ".join(run(*words).stdout.split())
    assert "× text: topics → zipf:vocabulary=50" in printed
    assert "Bold: the interval excludes 0" in printed
    assert "…" not in printed  # the numbers fit
    answer = json.loads(run(*words, "--json").stdout)
    losses = {row["name"]: row["validation"] for row in answer["trainings"]}
    pairs = [("base", "norm_at-post"), (zipf, f"norm_at-post+{zipf}")]
    assert set(losses) == {name + end for pair in pairs for name in pair for end in ends}
    of_norm, of_text, both = effects = answer["effects"]
    changes = [losses[post + end] - losses[pre + end] for pre, post in pairs for end in ends]
    assert of_norm["value"] == pytest.approx(sum(changes) / 6)
    assert both["value"] == pytest.approx((sum(changes[3:]) - sum(changes[:3])) / 3)
    assert of_text["switches"] == {"text": {"from": "topics", "to": "zipf:vocabulary=50"}}
    assert all(row["low"] < row["value"] < row["high"] and row["seeds"] == 3 for row in effects)
    assert json.loads((tmp_path / "effects.json").read_text()) == effects


def test_one_seed_gives_effects_without_intervals_and_says_why(tmp_path: Path) -> None:
    words = ["lab", "twins", *TINY, "--switch", "norm_at=post", "--no-track", "--out", str(tmp_path)]
    printed = " ".join(run(*words).stdout.split())
    assert "an interval needs 3 seeds with a value in every model, not 1" in printed
    assert "Bold" not in printed
