"""The request of a tangent test."""

from __future__ import annotations

import pytest

from anisoscope.errors import InputError
from anisoscope.tangent import Tangent
from anisoscope.tangent.site_bases import fit_site_bases
from tests.tangent_rows import cloud


def test_unknown_proxies_and_invalid_ranks_are_rejected() -> None:
    with pytest.raises(InputError, match=r"(?i)did you mean '?pca"):
        Tangent(proxies=["pcaa"])
    with pytest.raises(InputError, match="not all positive"):
        Tangent(ranks=(0,))
    with pytest.raises(InputError, match="no normal space"):
        fit_site_bases(cloud(6), ["pca"], [20])


def test_bases_freeze_after_the_first_share_of_all_steps() -> None:
    assert Tangent(total_steps=1000).frozen_from == 300
    assert Tangent().frozen_from is None
