"""Spectra and the top axis that are read off one reduction, against numpy's full decompositions."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from anisoscope.stats import moments, tridiagonal
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.tridiagonal import Tridiagonal


def scatter_and_mean(d: int, offset: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((3 * d + 3, d)) * np.logspace(0, -2, d) + offset * draw.standard_normal(d)
    mean = x.mean(0) if offset else np.zeros(d)
    y = x - mean
    return torch.from_numpy(y.T @ y), torch.from_numpy(mean), len(x)


@pytest.mark.parametrize("d", [1, 2, 3, 17, 64, 130])
@pytest.mark.parametrize("offset", [0.0, 1.0, 300.0])
def test_one_reduction_gives_both_spectra_and_the_top_axis(d: int, offset: float) -> None:
    scatter, mean, n = scatter_and_mean(d, offset)
    found = Tridiagonal.of(scatter, mean, n)
    values, axes = np.linalg.eigh(scatter.numpy())
    uncentred = np.linalg.eigvalsh((scatter + n * torch.outer(mean, mean)).numpy())
    assert found.eigenvalues(centred=True).numpy() == pytest.approx(values[::-1], abs=1e-13 * values[-1])
    assert found.eigenvalues(centred=False).numpy() == pytest.approx(uncentred[::-1], abs=1e-13 * uncentred[-1])
    assert abs(float(found.top_axis() @ torch.from_numpy(axes[:, -1].copy()))) == pytest.approx(1)
    turned = found.axes_uncentred().numpy()
    assert turned.T @ turned == pytest.approx(np.eye(d), abs=1e-13)
    second = (scatter + n * torch.outer(mean, mean)).numpy()
    assert turned.T @ second @ turned == pytest.approx(np.diag(uncentred), abs=1e-12 * uncentred[-1])


def test_the_input_is_not_changed() -> None:
    scatter, mean, n = scatter_and_mean(20, 1.0)
    before = scatter.clone(), mean.clone()
    found = Tridiagonal.of(scatter, mean, n)
    found.eigenvalues(centred=False)
    found.top_axis()
    assert torch.equal(scatter, before[0])
    assert torch.equal(mean, before[1])
    assert torch.equal(found.eigenvalues(centred=True), found.eigenvalues(centred=True))


def test_concurrent_threads_agree_and_restore_the_thread_limits() -> None:
    given = [scatter_and_mean(60, 1.0, seed) for seed in range(24)]
    alone = [Tridiagonal.of(*each).eigenvalues(centred=True) for each in given]
    before = [library["num_threads"] for library in threadpool_info()]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda each: Tridiagonal.of(*each).eigenvalues(centred=True), given))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert [library["num_threads"] for library in threadpool_info()] == before


@pytest.fixture
def unchecked() -> Iterator[None]:
    """No result of an earlier check, before and after."""
    tridiagonal.is_usable.cache_clear()
    tridiagonal._routine.cache_clear()
    yield
    tridiagonal.is_usable.cache_clear()
    tridiagonal._routine.cache_clear()


def test_the_check_accepts_this_scipy() -> None:
    assert tridiagonal.is_usable()


@pytest.mark.usefixtures("unchecked")
def test_missing_pointers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.linalg import cython_lapack

    monkeypatch.setattr(cython_lapack, "__pyx_capi__", {})
    assert not tridiagonal.is_usable()


@pytest.mark.usefixtures("unchecked")
def test_another_signature_is_noticed_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tridiagonal._ARGUMENTS, "dsytrd", 9)
    with pytest.raises(TypeError, match="dsytrd with another signature"):
        tridiagonal._routine("dsytrd")
    assert not tridiagonal.is_usable()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", ["eigenvalues", "top_axis", "axes_uncentred"])
def test_wrong_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = getattr(Tridiagonal, wrong)
    monkeypatch.setattr(Tridiagonal, wrong, lambda self, **options: right(self, **options).roll(1, 0))
    assert not tridiagonal.is_usable()


@pytest.mark.parametrize("usable", [True, False])
def test_moments_have_the_same_spectra_and_axes_with_and_without_the_pointers(
    monkeypatch: pytest.MonkeyPatch, usable: bool
) -> None:
    monkeypatch.setattr(moments, "is_usable", lambda: usable)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 12, generator=draw, dtype=torch.float64) * torch.logspace(0, -1, 12, dtype=torch.float64) + 0.5
    found = moments.Moments.of(bare_rows(x))
    assert (found._tridiagonal is not None) == usable
    y = (x - x.mean(0)).numpy()
    values, axes = np.linalg.eigh(y.T @ y)
    assert found.eigenvalues.numpy() == pytest.approx(values[::-1], rel=1e-9)
    assert found.eigenvalues_uncentred.numpy() == pytest.approx(np.linalg.svd(x.numpy())[1] ** 2, rel=1e-9)
    assert abs(found.top_axis.numpy() @ axes[:, -1]) == pytest.approx(1, rel=1e-9)
    turned = found.axes_uncentred.numpy()
    assert turned.T @ turned == pytest.approx(np.eye(12), abs=1e-9)
