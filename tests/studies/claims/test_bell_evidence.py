"""Claims about the shape of anisotropy over layers."""

from __future__ import annotations

from anisoscope.studies.claims import bell_evidence


def test_published_profiles_have_only_the_values_of_the_sources() -> None:
    found: dict[str, list[float | None]] = {}
    for record in bell_evidence.published_profiles(13):
        found.setdefault(record.variant["of"], []).append(record.value)
    assert found["GPT-2, published"] == [0.06, 0.30, 0.97, *[0.98] * 9, 0.83]
    assert found["OPT-125m, published"] == [0.98, 0.995, 0.96]
    assert set(found["BERT, published, least"]) == {0.01}
    assert found["Llama-2-7B, published"][-1] == 0.06
