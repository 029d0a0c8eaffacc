"""`words` explains every word, or one."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.report.glossary import WORDS


def test_one_word_of_several_that_are_listed_together() -> None:
    answer = CliRunner().invoke(app, ["words", "embed"])
    assert answer.exit_code == 0
    assert "input of layer 0" in " ".join(answer.output.split())


def test_json_holds_all_words() -> None:
    assert json.loads(CliRunner().invoke(app, ["words", "--json"]).stdout) == WORDS


def test_an_unknown_word_suggests_a_similar_one() -> None:
    answer = CliRunner().invoke(app, ["words", "masive"])
    assert "Did you mean 'massive'" in str(answer.exception)
