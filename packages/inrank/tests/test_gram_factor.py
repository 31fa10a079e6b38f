"""Factors from Gram matrices: float32 where it will do, which is measured here, and float64 where it will not."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from inrank import gram_factor as module
from inrank.gram_factor import gram_factor, lower_gram
from inrank.spectrum import product_singular_values


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _rows(kind: str, k: int, n: int, least: float = 1.0) -> Tensor:
    """Rows whose scaled Gram matrix has about this least eigenvalue."""
    generator = torch.Generator().manual_seed(k + n)
    x = torch.randn(k, n, generator=generator, dtype=torch.float64)
    if kind == "gauss":
        return x
    if kind == "common":  # all share one direction
        orthogonal = torch.linalg.qr(x.mT)[0].mT * math.sqrt(n)
        shared = torch.randn(1, n, generator=generator, dtype=torch.float64)
        return math.sqrt(least) * orthogonal + math.sqrt(1 - least) * shared
    x[1::2] = x[::2][: k // 2] * (1 - least) + math.sqrt(2 * least) * x[1::2]  # pairs of neighbours
    return x


@pytest.mark.parametrize("shape", [(1, 5), (7, 3), (40, 60), (130, 90), (2, 3, 45, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_gives_the_gram_matrix(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    expected = rows.double() @ rows.double().mT
    torch.testing.assert_close(lower_gram(rows).tril().double(), expected.tril(), rtol=0, atol=1e-4)
    rows[..., 0, :] = 0  # as fresh directions are
    rows[..., -1, :] = rows[..., 1 % shape[-2], :]  # dependent, where there are as many
    expected = rows.double() @ rows.double().mT
    factor = gram_factor(rows).double()
    torch.testing.assert_close(factor @ factor.mT, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-12)
    assert not factor[..., 0, :].any()


@pytest.mark.parametrize(("kind", "n"), [("gauss", 3072), ("common", 3072), ("pair", 3072), ("common", 20000)])
def test_float32_gives_values_to_the_tolerance(kind: str, n: int) -> None:
    # just above the bound, beside well-conditioned rows of falling length
    k, m, tolerance = 60, 200, 1e-6
    v = _rows(kind, k, n, 1.3 * (module._DELTA / tolerance) ** 2).float()
    u = _rows("gauss", k, m).float() * 0.9 ** torch.arange(k)[:, None]
    assert gram_factor(u).dtype == gram_factor(v, tolerance).dtype == torch.float32
    exact = product_singular_values(u.mT.double(), v.double())
    found = product_singular_values(u.mT, v, method="gram", tolerance=tolerance)
    assert float((found - exact).abs().max()) < tolerance * float(exact[0])


@pytest.mark.parametrize("kind", ["common", "pair"])
def test_float64_takes_over_where_rows_are_nearly_dependent(kind: str) -> None:
    k, m, n = 60, 200, 3072
    v, u = _rows(kind, k, n, 1e-5).float(), _rows("gauss", k, m).float() * 0.9 ** torch.arange(k)[:, None]
    assert gram_factor(v).dtype == torch.float64
    exact = product_singular_values(u.mT.double(), v.double())
    error = (product_singular_values(u.mT, v, method="gram") - exact).abs().max() / exact[0]
    assert float(error) < 3e-7
    # float32 would have been worse
    single = gram_factor(v, 1e-3)
    assert single.dtype == torch.float32
    worse = product_singular_values(u.mT.double(), single.double())  # V is L times orthonormal rows
    assert float((worse[:k] - exact[:k]).abs().max() / exact[0]) > 3 * float(error)


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12, 1e18])
def test_squares_neither_overflow_nor_underflow(scale: float) -> None:
    u, v = _rows("gauss", 20, 50).float(), _rows("gauss", 20, 70).float()
    expected = product_singular_values(u.mT.double(), v.double())
    found = product_singular_values(u.mT * scale, v, method="gram").double() / scale
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected[0]))


def test_no_float32_where_the_user_allows_rounder_products() -> None:
    rows = _rows("gauss", 20, 50).float()
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    try:
        assert gram_factor(rows).dtype == torch.float32
        torch.set_float32_matmul_precision("medium")
        assert gram_factor(rows).dtype == torch.float64
        torch.set_float32_matmul_precision("highest")
        assert gram_factor(rows).dtype == torch.float32
        setting.fp32_precision = "bf16"  # the newer way to say so, after which the older cannot be asked
        assert gram_factor(rows).dtype == torch.float64
    finally:
        setting.fp32_precision = before
