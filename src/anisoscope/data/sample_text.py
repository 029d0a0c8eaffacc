"""The text that comes with Python: its help topics, English prose with code, available without a download."""

from __future__ import annotations

import re
from collections.abc import Iterator

SAMPLE = "sample:topics"  # as a source of text
_BEGINNING = 1000  # characters of a document of the sample: many short documents are more varied than a few long ones
_PARAGRAPHS = re.compile(r"\n\s*\n")


def help_topics() -> Iterator[str]:
    """Yield Python's help topics, one document each.

    Topics quote each other, so only the first occurrence of each paragraph is kept: otherwise held-out text would
    occur in the training text.

    >>> sum(1 for _ in help_topics()) > 50
    True
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for topic in topics.values():
        kept = []
        for paragraph in _PARAGRAPHS.split(topic):
            if paragraph.strip() not in seen:
                seen.add(paragraph.strip())
                kept.append(paragraph)
        if kept:
            yield "\n\n".join(kept)


def sample_documents() -> Iterator[str]:
    """Yield the beginnings of the help topics, about 16,000 tokens in all."""
    return (topic[:_BEGINNING] for topic in help_topics())
