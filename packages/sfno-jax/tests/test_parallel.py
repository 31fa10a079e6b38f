"""Many devices against one: transforms and data-parallel training on 2 and 8 fake CPU devices.

The number of devices is fixed when JAX starts, so the comparisons run in a process of their own: this file, run as a
script with the number of devices, prints a JSON object of results, each a list of error-like numbers, a value, or a
traceback.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax import parallel, transforms

# (nlat, nlon, lmax, mmax, grid): rows that no device count divides, odd and even mmax, exact equiangular analysis.
CASES = {
    "uneven": (33, 64, 32, 31, "equiangular"),
    "even": (32, 64, 32, 32, "legendre-gauss"),
    "nyquist": (19, 24, 15, 13, "lobatto"),
}
MESHES = {2: ((1, 2), (2, 1)), 8: ((2, 4), (8, 1))}  # sphere split; batch alone


# --- run in a process with many devices -------------------------------------------------------------------------------


def compare(sharded, single, x):
    """Relative deviations of value and gradient."""

    def loss(transform, x, weight):
        y = transform(x)
        return jnp.sum(weight * (y.real**2 + y.imag**3)), y

    step = jax.jit(jax.value_and_grad(loss, 1, has_aux=True))
    weight = np.random.default_rng(1).normal(size=jax.eval_shape(single, x).shape).astype(x.real.dtype)
    (_, want), want_slope = step(single, x, weight)
    (_, got), got_slope = step(sharded, x, weight)
    return [deviation(got, want), deviation(got_slope, want_slope)]


def deviation(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return float(np.abs(got - want).max() / np.abs(want).max())


def example(shape, is_complex, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if is_complex else x).astype(dtype)


def check_transforms(mesh, case, vector, double):
    nlat, nlon, lmax, mmax, grid = arguments = CASES[case]
    names = ("RealVectorSHT", "InverseRealVectorSHT") if vector else ("RealSHT", "InverseRealSHT")
    results = []
    with jax.enable_x64(double):
        for name, size, is_complex in zip(names, ((nlat, nlon), (lmax, mmax)), (False, True), strict=True):
            dtype = np.dtype("c16" if is_complex else "f8") if double else np.dtype("c8" if is_complex else "f4")
            x = example((mesh.shape["batch"], *([2] if vector else []), *size), is_complex, dtype)
            sharded = getattr(parallel, f"Sharded{name}")(mesh, nlat, nlon, lmax, mmax, grid)
            results += compare(sharded, getattr(transforms, name)(*arguments), x)
    return results


def check_single_sample(devices):
    """Without a batch axis there is nothing to split along it."""
    mesh = parallel.make_mesh(*MESHES[devices][0])
    x = example((33, 64), False, np.float32)
    arguments = CASES["uneven"]
    return [deviation(parallel.ShardedRealSHT(mesh, *arguments)(x), transforms.RealSHT(*arguments)(x))]


def check_layout(devices):
    """Who holds what, and what travels."""
    mesh = parallel.make_mesh(1, devices)
    sht = parallel.ShardedRealSHT(mesh, *CASES["uneven"], padded=True)
    isht = parallel.ShardedInverseRealSHT(mesh, *CASES["uneven"], padded=True)
    x = example((3, 33, 64), False, np.float32)
    coeffs = sht(x)
    field = isht(coeffs)
    smooth = transforms.InverseRealSHT(*CASES["uneven"])(transforms.RealSHT(*CASES["uneven"])(x))
    (table,) = sht._tables
    compiled = jax.jit(lambda s, i, x: i(s(x))).lower(sht, isht, field).compile().as_text()
    return {
        "coefficients": [list(shard.data.shape) for shard in coeffs.addressable_shards],
        "rows": [list(shard.data.shape) for shard in field.addressable_shards],
        "table_share": table.addressable_shards[0].data.nbytes / table.nbytes,
        "padding": float(max(np.abs(coeffs[..., 31:]).max(), np.abs(field[:, 33:]).max())),
        "round_trip": deviation(field[:, :33], smooth),
        "again": deviation(sht(field), coeffs),
        "gathers": compiled.count(" all-gather("),
        "exchanges": compiled.count(" all-to-all("),
    }


def small_sfno():
    from flax import nnx

    from sfno_jax.models import SFNO, SFNOConfig

    config = SFNOConfig(
        nlat=17, nlon=32, in_channels=2, out_channels=2, scale_factor=1, embed_dim=4, num_layers=2, norm="none"
    )
    graph, params, rest = nnx.split(SFNO(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
    return lambda params, x: nnx.merge(graph, params, rest)(x), params


def check_training(devices):
    """Three steps of Adam, split over devices, end in the weights of one device; so does the prediction."""
    import optax

    predict, params = small_sfno()
    x, y = (example((2 * devices, 2, 17, 32), False, np.float32) for _ in range(2))
    mesh = parallel.make_mesh()

    def loss(params, batch):
        error = predict(params, batch["x"]) - batch["y"]
        return jnp.mean(error**2), {"largest": jnp.mean(jnp.abs(error))}

    optimizer = optax.adam(1e-3)

    def train(step, params, batch):
        state, values = optimizer.init(params), []
        for _ in range(3):
            (value, aux), gradient = step(params, batch)
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
            values += [value, aux["largest"]]
        return params, np.array(values), gradient

    batch = {"x": x, "y": np.roll(y, 1, axis=-1)}
    want = train(jax.jit(jax.value_and_grad(loss, has_aux=True)), params, batch)
    split = parallel.shard_batch(batch, mesh)
    assert split["x"].addressable_shards[0].data.shape[0] == 2
    step = parallel.data_parallel_value_and_grad(loss, mesh, has_aux=True)
    got = train(step, parallel.replicate(params, mesh), split)
    errors = [deviation(a, b) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)]
    forward = parallel.data_parallel(predict, mesh)(params, split["x"])
    assert forward.addressable_shards[0].data.shape[0] == 2
    return {
        "values_weights_gradients": max(errors),
        "forward": deviation(forward, jax.jit(predict)(params, x)),
        "moved": deviation(jax.tree.leaves(got[0])[0], jax.tree.leaves(params)[0]),
    }


def run_checks(devices):
    assert jax.device_count() == devices
    sphere, batch = (parallel.make_mesh(*shape) for shape in MESHES[devices])
    checks = {
        "uneven-scalar": lambda: check_transforms(sphere, "uneven", False, False),
        "uneven-vector": lambda: check_transforms(sphere, "uneven", True, True),
        "nyquist-scalar": lambda: check_transforms(sphere, "nyquist", False, True),
        "even-scalar": lambda: check_transforms(batch, "even", False, False),
    }
    checks["single"] = lambda: check_single_sample(devices)
    checks["layout"] = lambda: check_layout(devices)
    checks["training"] = lambda: check_training(devices)
    results = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception:
            results[name] = traceback.format_exc()
    return results


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 8])
def many(request):
    """(number of devices, results of a process with that many)."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={request.param}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-W", "error", str(Path(__file__)), str(request.param)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [("uneven-scalar", 1e-6), ("uneven-vector", 1e-13), ("nyquist-scalar", 1e-13), ("even-scalar", 1e-6)],
)
def test_transforms_and_gradients(many, case, tolerance):
    errors = many[1][case]
    assert isinstance(errors, list), errors
    assert len(errors) == 4
    assert max(errors) < tolerance


def test_without_a_batch(many):
    errors = many[1]["single"]
    assert isinstance(errors, list), errors
    assert max(errors) < 1e-6


def test_layout(many):
    devices, results = many
    layout = results["layout"]
    assert isinstance(layout, dict), layout
    orders, rows = {2: (16, 17), 8: (4, 5)}[devices]
    assert layout["coefficients"] == [[3, 32, orders]] * devices
    assert layout["rows"] == [[3, rows, 64]] * devices
    assert layout["table_share"] == 1 / devices
    assert layout["padding"] == 0
    assert layout["round_trip"] < 1e-6
    assert layout["again"] < 2e-6
    # One exchange there and one back; nobody ever holds the whole.
    assert (layout["gathers"], layout["exchanges"]) == (0, 2)


def test_data_parallel_sfno(many):
    results = many[1]["training"]
    assert isinstance(results, dict), results
    assert results["values_weights_gradients"] < 1e-5
    assert results["forward"] < 1e-6
    assert results["moved"] > 1e-4


def test_batch_alone_uses_the_native_path():
    sht = parallel.ShardedRealSHT(parallel.make_mesh(1, 1), 16, 32, grid="legendre-gauss")
    assert sht._local.backend == transforms.backend()
    assert sht.mmax_padded == sht.mmax == 16
    assert sht.nlat_padded == sht.nlat == 16


def test_the_comparison_sees_an_error():
    want = np.ones((4, 4), np.float32)
    got = want.copy()
    got[2, 3] += 2e-6
    assert deviation(got, want) > 1e-6


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: parallel.make_mesh(sphere=0), ValueError, "sphere=0"),
        (lambda: parallel.make_mesh(1000), ValueError, "batch=1000"),
        (
            lambda: parallel.ShardedRealSHT(jax.make_mesh((1,), ("batch",)), 16, 32),
            ValueError,
            "AxisType.Auto",
        ),
        (
            lambda: parallel.ShardedRealSHT(parallel.make_mesh(1), 16, 32, batch_axis="a", sphere_axis="b"),
            ValueError,
            "'a' or 'b'",
        ),
        (lambda: parallel.ShardedRealSHT(parallel.make_mesh(1), 16, 32, lmax=40), ValueError, "lmax=40"),
        (
            lambda: parallel.ShardedRealSHT(parallel.make_mesh(1), 16, 32)(np.zeros((15, 32), "f4")),
            ValueError,
            "nlat=15",
        ),
        (lambda: parallel.shard_batch({"x": np.float32(1)}, parallel.make_mesh(1)), ValueError, r"batch\['x'\]"),
        (lambda: parallel.shard_batch(np.zeros(4), parallel.make_mesh(1), "model"), ValueError, "'model'"),
        (
            lambda: parallel.data_parallel(lambda p, b: b, parallel.make_mesh(1))(0, np.float32(1)),
            ValueError,
            "multiple",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


if __name__ == "__main__":
    print(json.dumps(run_checks(int(sys.argv[1]))))
