"""Checkpoints: exactness, damage, other architectures, interrupted writes."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sfno_jax.training.checkpoint import (
    ArchitectureError,
    CheckpointError,
    CheckpointStore,
    DamagedCheckpointWarning,
    architecture,
    named_arrays,
    restore,
)

TREE = {
    "weights": {
        "a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) / 7,
        "b": [jnp.float32(0.1), jnp.ones((0, 2))],
    },
    "random": {"key": jax.random.key(3), "count": jnp.uint32(4)},
}


def bits(tree):
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in named_arrays(tree).items()}


def save(store, step, scale=1.0):
    weights = jax.tree.map(lambda x: scale * x, TREE["weights"])
    return store.save(step, {**TREE, "weights": weights}, {"note": step})


def test_round_trip_is_exact(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    save(store, 5)
    checkpoint = store.latest()
    assert checkpoint.meta == {"note": 5}
    for group, tree in TREE.items():
        back = restore(checkpoint.groups[group], tree, group)
        assert bits(back) == bits(tree)
    key = restore(checkpoint.groups["random"], TREE["random"], "random")["key"]
    assert jax.random.normal(key) == jax.random.normal(TREE["random"]["key"])


def test_keeps_the_last_ones(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 10):
        save(store, step)
    assert [path.name for path in store.paths()] == ["step-00000002", "step-00000010"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]
    save(store, 10, scale=2.0)  # again after a resume: replaced
    latest = store.latest().groups["weights"]
    np.testing.assert_array_equal(latest["a"], 2 * np.asarray(TREE["weights"]["a"]))


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        CheckpointStore(tmp_path, keep=0)


def damage_truncate(path):
    data = (path / "weights.safetensors").read_bytes()
    (path / "weights.safetensors").write_bytes(data[: len(data) // 2])


def damage_flip(path):
    data = bytearray((path / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "weights.safetensors").write_bytes(bytes(data))


def damage_remove(path):
    (path / "random.safetensors").unlink()


def damage_state(path):
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text.replace('"note": 2', '"note": 3'))


def damage_no_state(path):
    (path / "state.json").unlink()


DAMAGE = [damage_truncate, damage_flip, damage_remove, damage_state, damage_no_state]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_the_last_good_one_used(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    damage(save(store, 2))
    with pytest.warns(DamagedCheckpointWarning, match=r"step-00000002.*going on from step-0000000"):
        assert store.latest().meta == {"note": 1}
    damage_flip(tmp_path / "step-00000001")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        store.latest()


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_write_that_dies_leaves_the_old_checkpoint(tmp_path, monkeypatch, call):
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def die(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, die)
        with pytest.raises(KeyboardInterrupt):
            save(store, 2)
    assert store.latest().meta == {"note": 1}
    save(store, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_other_shapes_names_and_dtypes_are_listed():
    arrays = named_arrays(TREE["weights"])
    other = {"a": jnp.zeros((2, 4)), "b": TREE["weights"]["b"], "c": jnp.zeros(1)}
    with pytest.raises(ArchitectureError, match=r"c is missing.*a is float32\[2, 3\].*\[2, 4\]"):
        restore(arrays, other, "weights")
    with pytest.raises(ArchitectureError, match=r"a is not in this model"):
        restore(arrays, {"b": TREE["weights"]["b"]}, "weights")
    assert architecture(other) != architecture(TREE["weights"])
    assert architecture(jax.tree.map(lambda x: 2 * x, other)) == architecture(other)
