"""Wikipedia articles as plain text."""

from __future__ import annotations

from pathlib import Path

from anisoscope.studies.lab.enwik8 import articles, plain_text

DUMP = """<mediawiki>
  <page><title>Cat</title><revision>
    <text xml:space="preserve">The '''cat''' (''Felis catus'') is a [[mammal|small mammal]].{{cite|a={{b}}}}
== Life ==
* It sleeps [http://cats.org a lot].&lt;br /&gt; &lt;math&gt;x^2&lt;/math&gt;
[[Image:Cat.jpg|thumb|A [[cat]] asleep]]
&lt;code&gt;print(1)&lt;/code&gt; {| class="x"
| cell
|} End &amp;amp; done.
[[Category:Cats]] [[fr:Chat]]</text></revision></page>
  <page><text xml:space="preserve">#REDIRECT [[Cat]]</text></page>
  <page><text xml:space="preserve">Dogs   bark.</text></page>
  <page><text xml:space="preserve">This article is cut sho"""


def test_articles_have_no_markup(tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_text(DUMP)
    found = list(articles(tmp_path / "enwik8"))
    assert len(found) == 2
    assert found[0].splitlines()[0] == "The cat (Felis catus) is a small mammal."
    assert "It sleeps a lot." in found[0]
    assert "End & done." in found[0]
    for gone in ("Image", "thumb", "asleep", "print", "x^2", "cite", "cell", "Category", "Chat", "http", "<", "[", "="):
        assert gone not in found[0]
    assert found[1] == "Dogs bark.\n"


def test_unclosed_markup_does_not_hang() -> None:
    assert "text" in plain_text("[[Image:a.jpg|thumb text {{open [[link")
    assert plain_text("&lt;!-- hidden --&gt;seen [[:Category:Cats|cats]] and [[Paris]]") == "seen  and Paris".replace(
        "  ", " "
    )
