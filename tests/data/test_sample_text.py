"""The text that comes with Python."""

from __future__ import annotations

from anisoscope.data.sample_text import SAMPLE, help_topics, sample_documents
from anisoscope.data.text_sources import text_documents, text_size


def test_no_paragraph_occurs_twice() -> None:
    paragraphs = [part.strip() for topic in help_topics() for part in topic.split("\n\n") if len(part) > 100]
    assert len(paragraphs) == len(set(paragraphs)) > 500


def test_the_sample_is_a_source_of_text_with_a_size() -> None:
    documents = text_documents(SAMPLE)
    assert list(documents) == list(documents) == list(sample_documents())
    assert documents.unit == "documents"
    assert max(map(len, documents)) <= 1000
    assert text_size(SAMPLE) == sum(map(len, documents)) > 4 * 8192  # at four characters per token
