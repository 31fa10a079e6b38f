"""The C++ kernel against tables of Legendre functions computed in NumPy, and against itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax import _native
from sfno_jax._plan import LegendrePlan
from sfno_jax.grids import quadrature
from sfno_jax.legendre import associated_legendre, associated_legendre_derivatives

TOLERANCE = {np.complex64: 1e-6, np.complex128: 1e-12}

# grid, nlat, lmax, mmax, nfreq: odd and even nlat, poles, lmax != mmax, more orders than frequencies, more degrees
# than latitudes (where one register of latitudes spans pole and equator).
SHAPES = [
    ("legendre-gauss", 32, 32, 32, 33),
    ("legendre-gauss", 33, 30, 20, 25),
    ("equiangular", 17, 17, 12, 9),
    ("lobatto", 40, 39, 41, 41),
    ("trapezoidal", 21, 15, 15, 40),
    ("equiangular", 9, 30, 25, 40),
    ("legendre-gauss", 2, 3, 2, 3),
    ("legendre-gauss", 16, 300, 280, 281),
    ("equiangular", 91, 46, 46, 91),
]

# Below four fields the kernel sums along the lanes, from four on it multiplies matrices.
BATCHES = (1, 2, 3, 4, 5, 16, 17)


def test_native_path_is_in_use() -> None:
    # A compiler is a requirement of the test suite, so the kernel must be there.
    assert _native.available(), _native.why_unavailable()
    assert _native.why_unavailable() is None
    assert _native.isa() in {"v4", "v3", "v2", "generic"}


def make_plan(grid: str, nlat: int, lmax: int, mmax: int, nfreq: int, csphase: bool = True) -> LegendrePlan:
    theta, weights = quadrature(grid, nlat)
    x, s = np.cos(theta), np.sin(theta)
    return LegendrePlan.create(
        cos_colatitude=(x - x[::-1]) / 2,
        sin_colatitude=np.maximum((s + s[::-1]) / 2, 0),
        weights=weights,
        degree_scale=np.random.default_rng(lmax).uniform(0.5, 1.5, lmax),
        lmax=lmax,
        mmax=mmax,
        nfreq=nfreq,
        csphase=csphase,
    )


def complex_normal(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def table_analysis(table: np.ndarray, plan: LegendrePlan, fourier: np.ndarray) -> np.ndarray:
    m = min(plan.mmax, plan.nfreq)
    out = np.zeros((*fourier.shape[:-2], plan.lmax, plan.mmax), complex)
    out[..., :m] = np.einsum("mlk,k,...km->...lm", table[:m], plan.weights, fourier[..., :m], optimize=True)
    return out * plan.degree_scale[:, None]


def table_synthesis(table: np.ndarray, plan: LegendrePlan, a: np.ndarray) -> np.ndarray:
    m = min(plan.mmax, plan.nfreq)
    out = np.zeros((*a.shape[:-2], plan.nlat, plan.nfreq), complex)
    scaled = (a * plan.degree_scale[:, None])[..., :m]
    out[..., :m] = np.einsum("mlk,k,...lm->...km", table[:m], plan.weights, scaled, optimize=True)
    return out


def relative(got: object, want: np.ndarray) -> float:
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scalar_equals_tables(shape: tuple[str, int, int, int, int], dtype: type) -> None:
    plan = make_plan(*shape, csphase=shape[1] % 3 != 0)
    table = associated_legendre(plan.lmax, plan.mmax, plan.cos_colatitude, csphase=plan.csphase)
    for batch in BATCHES if shape in SHAPES[:2] else (1, 5):
        fourier = complex_normal(1, batch, plan.nlat, plan.nfreq)
        a = complex_normal(2, batch, plan.lmax, plan.mmax)
        with jax.enable_x64(True):
            got_a = _native.legendre_analysis(jnp.asarray(fourier.astype(dtype)), plan)
            got_f = _native.legendre_synthesis(jnp.asarray(a.astype(dtype)), plan)
        want_a, want_f = table_analysis(table, plan, fourier), table_synthesis(table, plan, a)
        assert got_a.dtype == got_f.dtype == dtype
        assert relative(got_a, want_a) < TOLERANCE[dtype], batch
        assert relative(got_f, want_f) < TOLERANCE[dtype], batch
        assert not np.asarray(got_a)[:, want_a[0] == 0].any()
        assert not np.asarray(got_f)[..., plan.mmax :].any()
        # The comparison notices one wrong order.
        spoiled = np.array(got_a)
        spoiled[..., -1, 1] *= 1.01
        assert relative(spoiled, want_a) > TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_vector_equals_tables(shape: tuple[str, int, int, int, int], dtype: type) -> None:
    plan = make_plan(*shape)
    D, E = associated_legendre_derivatives(plan.lmax, plan.mmax, plan.cos_colatitude)
    for batch in (1, 3, 4, 16, 17) if shape in SHAPES[:1] else (1, 5):
        v = complex_normal(3, batch, 2, plan.nlat, plan.nfreq)
        st = complex_normal(4, batch, 2, plan.lmax, plan.mmax)
        for conjugate in (False, True) if shape in SHAPES[:1] else (batch == 5,):
            i = -1j if conjugate else 1j
            with jax.enable_x64(True):
                got_st = _native.vector_analysis(jnp.asarray(v.astype(dtype)), plan, conjugate)
                got_v = _native.vector_synthesis(jnp.asarray(st.astype(dtype)), plan, conjugate)
            (vt, vl), (s, t) = np.moveaxis(v, 1, 0), np.moveaxis(st, 1, 0)
            want_st = np.stack(
                [
                    table_analysis(D, plan, vt) - i * table_analysis(E, plan, vl),
                    -table_analysis(D, plan, vl) - i * table_analysis(E, plan, vt),
                ],
                axis=1,
            )
            want_v = np.stack(
                [
                    table_synthesis(D, plan, s) + i * table_synthesis(E, plan, t),
                    i * table_synthesis(E, plan, s) - table_synthesis(D, plan, t),
                ],
                axis=1,
            )
            assert relative(got_st, want_st) < TOLERANCE[dtype], (batch, conjugate)
            assert relative(got_v, want_v) < TOLERANCE[dtype], (batch, conjugate)


def log_sectoral(m: int, sine: np.ndarray) -> np.ndarray:
    """log2 of P_mm without the Condon-Shortley phase, which underflows a double."""
    j = np.arange(1, m + 1)
    return 0.5 * (np.log2((2 * j + 1) / (2 * j)).sum() - np.log2(4 * np.pi)) + m * np.log2(sine)


@pytest.mark.parametrize("batch", [1, 8])
def test_degree_2000_does_not_underflow(batch: int) -> None:
    """P_{l m} for m = 1500 at colatitude 60 degrees: P_mm ~ 2^-310 there is fine, at 20 degrees 2^-2300 is not."""
    lmax, m = 2001, 1500
    theta = np.deg2rad(np.array([20.0, 50.0, 60.0, 88.0]))
    theta = np.concatenate([theta, np.pi - theta[::-1]])
    x = np.cos(theta)
    plan = LegendrePlan.create(
        cos_colatitude=(x - x[::-1]) / 2,
        weights=np.ones(8),
        degree_scale=np.ones(lmax),
        lmax=lmax,
        mmax=m + 1,
        nfreq=m + 1,
        csphase=False,
    )
    degrees = np.array([1500, 1501, 1733, 1900, 1999, 2000])
    # The same functions by the one-step recurrence with the exponent kept apart, in long double.
    wide = np.longdouble
    log = log_sectoral(m, np.sin(theta))
    q, before, shift = np.exp2((log % 1).astype(wide)), np.zeros(8, wide), np.floor(log)
    want = np.zeros((len(degrees), 8))
    for l in range(m, lmax):
        want[degrees == l] = np.ldexp(q, shift.astype(int)).astype(float)
        eps = np.sqrt([wide((k - m) * (k + m)) / wide(4 * k * k - 1) for k in (l, l + 1)])
        q, before = (wide(1) * plan.cos_colatitude * q - eps[0] * before) / eps[1], q
        big = np.abs(q) > 2.0**500
        q, before, shift = q * np.where(big, 2.0**-500, 1), before * np.where(big, 2.0**-500, 1), shift + 500 * big
    with jax.enable_x64(True):
        for l, row in zip(degrees, want, strict=True):
            a = np.zeros((batch, lmax, m + 1), complex)
            a[:, l, m] = 1
            got = np.asarray(_native.legendre_synthesis(jnp.asarray(a), plan))[..., m]
            assert np.abs(got - row).max() < 1e-11 * max(1.0, np.abs(row).max())
    assert np.abs(want).max() > 0.1
    assert np.exp2(log[0]) == 0.0


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("batch", [1, 9])
def test_derivatives_are_exact_transposes(vector: bool, batch: int) -> None:
    plan = make_plan("equiangular", 19, 14, 12, 16)
    parts = (2,) if vector else ()
    analysis = _native.vector_analysis if vector else _native.legendre_analysis
    synthesis = _native.vector_synthesis if vector else _native.legendre_synthesis
    shapes = (batch, *parts, plan.nlat, plan.nfreq), (batch, *parts, plan.lmax, plan.mmax)
    with jax.enable_x64(True):
        for apply, (source, target) in ((analysis, shapes), (synthesis, shapes[::-1])):
            x, dx = (jnp.asarray(complex_normal(seed, *source)) for seed in (5, 6))
            ct = jnp.asarray(complex_normal(7, *target))

            def f(x: jax.Array, apply=apply) -> jax.Array:
                return apply(x, plan)

            y, pullback = jax.vjp(f, x)
            (back,) = pullback(ct)
            # JAX's transpose has no conjugate: sum(ct * f(x)) == sum(f^T(ct) * x).
            assert abs(jnp.sum(ct * y) - jnp.sum(back * x)) < 1e-12 * abs(jnp.sum(ct * y))
            _, tangent = jax.jvp(f, (x,), (dx,))
            np.testing.assert_array_equal(tangent, f(dx))
            # vmap, in the middle as well, and under jit with grad of grad
            mapped = jax.vmap(f, in_axes=1, out_axes=1)(jnp.stack([x, dx], axis=1))
            np.testing.assert_allclose(mapped[:, 0], y, rtol=0, atol=1e-13 * float(jnp.abs(y).max()))

            def loss(z: jax.Array, f=f) -> jax.Array:
                y = f(jax.lax.complex(z[0], z[1]))
                return jnp.sum((y.real**2 + y.imag**2) ** 2)

            z, dz = jnp.stack([x.real, x.imag]), jnp.stack([dx.real, dx.imag])
            gradient = jax.grad(loss)
            several = jax.jit(jax.vmap(gradient))(jnp.stack([z, dz]))
            scale = float(jnp.abs(several[0]).max())
            np.testing.assert_allclose(several[0], gradient(z), rtol=0, atol=1e-12 * scale)
            # The Hessian along dz: forward over reverse, reverse over reverse, and finite differences.
            _, forward = jax.jvp(gradient, (z,), (dz,))
            reverse = jax.grad(lambda z, g=gradient, d=dz: jnp.vdot(g(z), d))(z)
            step = 1e-5
            finite = (gradient(z + step * dz) - gradient(z - step * dz)) / (2 * step)
            scale = float(jnp.abs(finite).max())
            np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-11 * scale)
            np.testing.assert_allclose(forward, finite, rtol=0, atol=1e-8 * scale)


def test_float32_data_needs_no_x64() -> None:
    plan = make_plan("legendre-gauss", 16, 16, 16, 17)
    fourier = complex_normal(8, plan.nlat, plan.nfreq).astype(np.complex64)
    got = jax.jit(lambda x: _native.legendre_analysis(x, plan))(fourier)
    table = associated_legendre(plan.lmax, plan.mmax, plan.cos_colatitude)
    assert got.dtype == np.complex64
    assert relative(got, table_analysis(table, plan, fourier)) < TOLERANCE[np.complex64]


def test_empty_batch() -> None:
    plan = make_plan("legendre-gauss", 8, 8, 8, 9)
    assert _native.legendre_analysis(jnp.zeros((0, 8, 9), jnp.complex64), plan).shape == (0, 8, 8)


SCRIPT = """
import hashlib, sys
import jax, jax.numpy as jnp, numpy as np
from sfno_jax import _native
from sfno_jax._plan import LegendrePlan
from sfno_jax.grids import quadrature

theta, weights = quadrature("legendre-gauss", 48)
plan = LegendrePlan.create(cos_colatitude=np.cos(theta), weights=weights, degree_scale=np.ones(48),
                           lmax=48, mmax=48, nfreq=49, csphase=True)
rng = np.random.default_rng(0)
digest, sums = hashlib.sha256(), []
for batch in (1, 12):
    for dtype in (np.complex64, np.complex128):
        with jax.enable_x64(True):
            v = rng.normal(size=(batch, 2, 48, 49)) + 1j * rng.normal(size=(batch, 2, 48, 49))
            v = jnp.asarray(v.astype(dtype))
            for y in (_native.legendre_analysis(v, plan), _native.vector_analysis(v, plan),
                      _native.legendre_synthesis(v[..., :48], plan), _native.vector_synthesis(v[..., :48], plan)):
                digest.update(np.asarray(y).tobytes())
                sums.append(float(jnp.sum(jnp.abs(y))))
print(_native.isa(), digest.hexdigest(), *sums)
"""


def run_script(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def default_run() -> list[str]:
    return run_script()


def test_threads_change_no_bit(default_run: list[str]) -> None:
    assert run_script(SFNO_JAX_NUM_THREADS="1")[1] == default_run[1]


@pytest.mark.skipif(_native.available() and _native.isa() == "generic", reason="one instruction set on this machine")
@pytest.mark.parametrize("isa", ["v2", "v3", "v4"])
def test_instruction_sets_agree(isa: str, default_run: list[str]) -> None:
    got = run_script(SFNO_JAX_ISA=isa)
    assert got[0] <= isa  # what the processor lacks is replaced by the next narrower one
    np.testing.assert_allclose(np.array(got[2:], float), np.array(default_run[2:], float), rtol=1e-6)


def test_bad_input() -> None:
    plan = make_plan("legendre-gauss", 8, 8, 8, 9)
    with pytest.raises(ValueError, match=r"shape \(8, 8\); expected complex \(\.\.\., 8, 9\)"):
        _native.legendre_analysis(jnp.zeros((8, 8), jnp.complex64), plan)
    with pytest.raises(ValueError, match="float32"):
        _native.legendre_analysis(jnp.zeros((8, 9), jnp.float32), plan)
    lopsided = LegendrePlan.create(
        cos_colatitude=[0.9, 0.1, -0.5],
        weights=np.ones(3),
        degree_scale=np.ones(2),
        lmax=2,
        mmax=2,
        nfreq=3,
        csphase=True,
    )
    with pytest.raises(ValueError, match="symmetric about the equator"):
        _native.legendre_analysis(jnp.zeros((3, 3), jnp.complex64), lopsided)
    with pytest.raises(ValueError, match="must agree"):
        LegendrePlan.create(
            cos_colatitude=[0.5, -0.5],
            sin_colatitude=[1.0],
            weights=np.ones(2),
            degree_scale=np.ones(2),
            lmax=2,
            mmax=2,
            nfreq=3,
            csphase=True,
        )
