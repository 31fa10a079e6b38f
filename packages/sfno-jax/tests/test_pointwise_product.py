"""The pointwise product beside einsum, and the order of its gradients."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from sfno_jax.models.pointwise_product import pointwise_product


def arguments(batch=3, inner=5, out=4, points=7):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((out, inner)), "float32"), jnp.asarray(
        rng.standard_normal((batch, inner, points)), "float32"
    )


def plain(weight, x):
    return jnp.einsum("oc,bcp->bop", weight, x, precision="highest")


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_value_and_gradients(argnums):
    args = arguments()
    np.testing.assert_allclose(pointwise_product(*args), plain(*args), rtol=1e-5, atol=1e-6)

    def loss(f):
        return lambda *a: jnp.sum(jnp.sin(f(*a)))

    ours, theirs = (jax.tree.leaves(jax.grad(loss(f), argnums)(*args)) for f in (pointwise_product, plain))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_all_orders_and_modes():
    with jax.enable_x64(True):
        args = tuple(a.astype("float64") for a in arguments())
        jax.test_util.check_grads(pointwise_product, args, order=3)
        mapped = jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.sin(pointwise_product(w, x))), (0, 1)), (None, 0))
        w, x = args
        for a, b in zip(mapped(w, jnp.stack([x, 2 * x])), mapped(w, jnp.stack([3 * x, 2 * x])), strict=True):
            np.testing.assert_allclose(a[1], b[1], rtol=1e-12)
            assert not np.allclose(a[0], b[0])


def test_the_weights_gradient_comes_first_only_where_both_are_wanted():
    def barriers(argnums):
        gradient = jax.grad(lambda w, x: jnp.sum(jnp.sin(pointwise_product(w, x))), argnums)
        return jax.jit(gradient).lower(*arguments()).as_text().count("optimization_barrier")

    assert [barriers(argnums) for argnums in (0, 1, (0, 1))] == [0, 0, 1]
