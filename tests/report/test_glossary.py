"""Every word of the glossary is found on its own, and words that tables print are explained."""

from __future__ import annotations

from anisoscope.report.glossary import WORDS, meanings


def test_words_listed_together_have_one_meaning_each() -> None:
    single = meanings()
    assert single["resid"] == single["final"] == WORDS["resid, embed, final"]
    assert sum(words.count(",") + 1 for words in WORDS) == len(single)  # none is explained twice


def test_words_that_tables_print_are_explained() -> None:
    everything = " ".join([*WORDS, *WORDS.values()])
    for word in ("no-sink", "null", "massive", "sink", "site", "block", "variant"):
        assert word in everything
