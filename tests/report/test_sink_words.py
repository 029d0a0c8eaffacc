"""Massive tokens in words."""

from __future__ import annotations

from typing import Any

from anisoscope.report.checked_info import checked_info
from anisoscope.report.sink_words import quoted, sink_words


def words(**removed: Any) -> list[str]:
    return [quoted(word) for word in sink_words(checked_info({"removed": removed})["removed"])]


def test_older_runs_are_grouped_by_text() -> None:
    tokens = [{"text": "="}, {"text": " the"}, {"text": " the"}]
    assert words(count=3, tokens=tokens) == ["“the”", "“=”"]


def test_without_a_tokenizer_there_are_ids_and_without_ids_positions() -> None:
    listed = [{"token": 7, "count": 3}, {"position": 4, "count": 1}]
    assert words(count=4, tokens=[], words=listed) == ["token 7", "position 4"]
    assert words(count=1, tokens=[{"token": -1, "position": 3, "text": None}]) == ["position 3"]


def test_a_text_cannot_change_a_terminal() -> None:
    assert words(count=1, words=[{"text": "\x1b[31mred\r", "count": 1}]) == ["“\\x1b[31mred\\r”"]


def test_entries_of_other_types_are_left_out() -> None:
    hostile = {"text": 5, "token": "x", "count": "many", "norm over median": {}, "left": 1, "right": 2}
    [word] = sink_words(checked_info({"removed": {"count": 1, "words": [hostile, "no"]}})["removed"])
    assert (word.name, word.count, word.norm, word.context) == ("position ?", 1, None, None)


def test_white_space_of_a_context_is_visible_and_on_one_line() -> None:
    word = {"text": "\n", "count": 1, "left": "= title =", "shown": "\n", "right": " next\nline"}
    [found] = sink_words(checked_info({"removed": {"count": 1, "words": [word]}})["removed"])
    assert found.context == ("= title =", "⏎", " next⏎line")
