"""Models of the user as subjects of claims."""

from __future__ import annotations

from typing import Any

import pytest

from anisoscope.records import Site
from anisoscope.studies.claims.given_models import GROUPS, groups_of, thinned
from anisoscope.studies.claims.run_view import (
    Missing,
)


def test_groups_of_documents_are_consecutive() -> None:
    batches: list[Any] = list(range(11))
    groups = groups_of(batches)
    assert len(groups) == GROUPS
    assert [each for group in groups for each in group] == batches
    with pytest.raises(Missing, match="3 batches, but 4 are needed"):
        groups_of(batches[:3])


def test_a_deep_model_is_measured_at_seven_depths_including_its_ends() -> None:
    deep = [Site.parse(name) for name in ("embed", *(f"resid.{layer}" for layer in range(30)), "final")]
    found = [str(site) for site in thinned(deep)]
    assert found == ["embed", *(f"resid.{layer}" for layer in (4, 9, 14, 19, 24, 29)), "final"]
    assert thinned(deep[:7]) == deep[:7]
