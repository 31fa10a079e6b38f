"""Singular values of a product of factors: equal to those of the dense product, which is never built."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inrank.spectrum import METHODS, difference_factors, product_singular_values, product_svd


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


def _factors(m: int, k: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(m, k, generator=generator, dtype=torch.float64) * 0.9 ** torch.arange(k)
    return u.to(dtype), torch.randn(k, n, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("method", ["qr", "gram"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(40, 7, 90), (90, 7, 40), (30, 30, 30), (20, 25, 60), (60, 70, 50), (5, 1, 3)]
)
def test_values_are_those_of_the_product(method: str, m: int, k: int, n: int) -> None:
    u, v = _factors(m, k, n)
    expected = torch.linalg.svdvals(u.double() @ v.double())
    s = product_singular_values(u, v, method=method)
    assert s.shape == (min(m, n),)
    assert s.dtype == torch.float32
    torch.testing.assert_close(s.double(), expected, rtol=0, atol=1e-6 * float(expected[0]))
    assert bool((s.diff() <= 0).all())
    # and a perturbed factor is seen
    u[0, 0] += 0.01 * u.norm()
    assert float((product_singular_values(u, v, method=method) - s).abs().max()) > 1e-4


@pytest.mark.parametrize(("method", "floor"), [("qr", 1e-13), ("gram", 3e-8)])
def test_small_values_in_float64(method: str, floor: float) -> None:
    # what the documentation says of the gram method: large values to all digits, noise below 1e-8 |U| |V|
    generator = torch.Generator().manual_seed(1)
    q = torch.linalg.qr(torch.randn(50, 8, generator=generator, dtype=torch.float64))[0]
    p = torch.linalg.qr(torch.randn(60, 8, generator=generator, dtype=torch.float64))[0]
    s = torch.tensor([1.0, 0.5, 1e-2, 1e-4, 1e-6, 1e-9, 1e-12, 0.0], dtype=torch.float64)
    found = product_singular_values(q * s, p.mT.contiguous(), method=method)[:8]
    assert float((found - s).abs().max()) < floor
    torch.testing.assert_close(found[:3], s[:3], rtol=1e-11, atol=0)


def test_gram_with_dependent_rows() -> None:
    u, v = _factors(30, 4, 50)
    doubled_u, doubled_v = torch.cat([u, -u], -1), torch.cat([v, v])
    assert float(product_singular_values(doubled_u, doubled_v, method="gram").max()) < 1e-4
    assert float(product_singular_values(doubled_u, doubled_v, method="qr").max()) < 1e-4
    s = product_singular_values(torch.cat([u, u], -1), doubled_v, method="gram")
    torch.testing.assert_close(s, 2 * product_singular_values(u, v), rtol=1e-5, atol=1e-5)


def test_randomized_finds_the_leading_values() -> None:
    u, v = _factors(200, 40, 300)
    exact = product_singular_values(u, v)
    found = product_singular_values(u, v, method="randomized", leading=6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found[:6], exact[:6], rtol=1e-2, atol=0)
    assert float(found[6:].abs().max()) == 0
    again = product_singular_values(u, v, method="randomized", leading=6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, again)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 12), st.integers(1, 9), st.sampled_from(["qr", "gram"]))
def test_batches_and_every_shape(groups: int, m: int, k: int, n: int, method: str) -> None:
    generator = torch.Generator().manual_seed(groups + 10 * m + 100 * k)
    u = torch.randn(groups, m, k, generator=generator, dtype=torch.float64)
    v = torch.randn(groups, k, n, generator=generator, dtype=torch.float64)
    expected = torch.linalg.svdvals(u @ v)
    atol = 1e-6 * max(1.0, float(expected.max()))
    torch.testing.assert_close(product_singular_values(u, v, method=method), expected, rtol=0, atol=atol)


def test_svd_gives_factors_and_the_way_to_them() -> None:
    u, v = _factors(30, 6, 40, torch.float64)
    svd = product_svd(u, v)
    torch.testing.assert_close((svd.left * svd.s) @ svd.right, u @ v)
    torch.testing.assert_close(svd.left.mT @ svd.left, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(svd.right @ svd.right.mT, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(svd.left.mT @ u, svd.core_left)
    torch.testing.assert_close(v @ svd.right.mT, svd.core_right)


@pytest.mark.parametrize("method", METHODS)
def test_no_dense_product(method: str) -> None:
    m, k, n = 300, 12, 500
    u, v = _factors(m, k, n)
    with LargestTensor() as largest:
        product_singular_values(u, v, method=method)
        assert largest.numel <= (m + n) * 2 * k < m * n / 7
        product_svd(u, v)
    assert largest.numel <= (m + n) * 2 * k
    with LargestTensor() as largest:
        torch.linalg.svdvals(u @ v)  # the recorder does see a dense product
    assert largest.numel == m * n


@pytest.mark.parametrize(
    ("u", "v", "method", "error", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 4), "qr", ValueError, r"\(3, 2\) and \(3, 4\)"),
        (torch.ones(3), torch.ones(3, 4), "qr", ValueError, "factors have shapes"),
        (torch.ones(2, 3, 2), torch.ones(2, 4), "qr", ValueError, "factors have shapes"),
        (torch.ones(3, 2), torch.ones(2, 4), "lanczos", ValueError, "unknown method 'lanczos'"),
        (torch.ones(3, 2).int(), torch.ones(2, 4), "qr", TypeError, "floating"),
        (torch.full((3, 2), math.nan), torch.ones(2, 4), "qr", FloatingPointError, "factor U"),
        (torch.ones(3, 2), torch.full((2, 4), math.inf), "gram", FloatingPointError, "factor V"),
    ],
)
def test_bad_input(u: Tensor, v: Tensor, method: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        product_singular_values(u, v, method=method)


def test_svd_of_too_many_directions() -> None:
    with pytest.raises(ValueError, match="k is 5"):
        product_svd(torch.ones(4, 5), torch.ones(5, 8))


@pytest.mark.parametrize("method", ["qr", "gram"])
@pytest.mark.parametrize(("k", "k0"), [(6, 6), (9, 6), (4, 6)])
def test_differences_of_products(method: str, k: int, k0: int) -> None:
    u, v = _factors(30, k, 40, torch.float64)
    u0, v0 = _factors(30, k0, 40, torch.float64, seed=1)
    left, right = difference_factors(u, v, u0, v0)
    torch.testing.assert_close(left @ right, u @ v - u0 @ v0)
    found = product_singular_values(left, right, method=method)
    torch.testing.assert_close(found, torch.linalg.svdvals(u @ v - u0 @ v0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["qr", "gram"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_differences_of_products_keep_their_digits(method: str, dtype: torch.dtype) -> None:
    u0, v0 = _factors(60, 20, 80, dtype)
    generator = torch.Generator().manual_seed(2)
    step = 1e-4 if dtype == torch.float32 else 0.02
    u = u0 + (step * torch.randn(60, 20, generator=generator)).to(dtype)
    v = v0 + (step * torch.randn(20, 80, generator=generator)).to(dtype)
    expected = torch.linalg.svdvals(u.double() @ v.double() - u0.double() @ v0.double())

    def error(left: Tensor, right: Tensor) -> float:
        s = product_singular_values(left, right, method=method, tolerance=1e-5, floor=True)
        return float((s.double() - expected).abs().max() / expected[0])

    assert error(*difference_factors(u, v, u0, v0)) < 1e-6
    if dtype == torch.float32 and method == "qr":  # side by side, the two products cancel
        assert error(torch.cat([u, -u0], -1), torch.cat([v, v0], -2)) > 1e-5
    nothing = product_singular_values(*difference_factors(u, v, u, v), method=method, floor=True)
    assert not nothing.any()


@pytest.mark.parametrize("method", METHODS)
def test_floor_takes_away_what_rounding_leaves(method: str) -> None:
    u, v = _factors(30, 4, 50)
    left, right = torch.cat([u, -u], -1), torch.cat([v, v])
    keywords = {"method": method, "leading": 8, "generator": torch.Generator().manual_seed(0)}
    assert product_singular_values(left, right, **keywords).any()
    s = product_singular_values(left, right, floor=True, **keywords)
    assert float(s.max()) < 1e-5
    torch.testing.assert_close(
        product_singular_values(u, v, floor=True, method=method, leading=4)[:4], product_singular_values(u, v)[:4]
    )
