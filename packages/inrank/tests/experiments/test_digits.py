import numpy as np
import pytest
import torch

from inrank.experiments import NETWORKS, OPTIMIZERS, glyph_digits, make_network, read_digits, track_digits


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_digits_are_seeded_standardized_and_tell_classes_apart():
    images, labels = glyph_digits(600, noise=0.0, seed=3)
    again, other = glyph_digits(600, noise=0.0, seed=3), glyph_digits(600, noise=0.0, seed=4)
    assert torch.equal(images, again[0])
    assert not torch.equal(images, other[0])
    assert images.shape == (600, 1, 16, 16)
    assert float(images.mean()) == pytest.approx(0, abs=1e-5)
    assert float(images.std()) == pytest.approx(1, abs=1e-5)
    assert set(labels.tolist()) == set(range(10))
    # one of the nearest neighbours' label, without learning
    distance = torch.cdist(images[300:].flatten(1), images[:300].flatten(1))
    right = (labels[:300][distance.argmin(1)] == labels[300:]).double().mean()
    assert right > 0.6


def test_networks_are_seeded_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    for name in NETWORKS:
        first, second = (make_network(name, seed=1) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
        assert first(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_are_of_lower_rank_than_weights_and_noise(optimizer):
    run = track_digits("mlp", optimizer, steps=150, every=15)
    assert run.accuracy > 0.8
    assert run.history.steps == list(range(15, 151, 15))
    for layer in run.layers:
        if layer.full_rank > 10:
            assert layer.update < 0.6 * layer.weight
            assert layer.update < 0.5 * layer.random


@pytest.mark.parametrize("network", ["cnn", "vit"])
def test_other_networks_are_tracked_layer_by_layer(network):
    run = track_digits(network, "adam", steps=4, every=2, digits=glyph_digits(300))
    assert {"cnn": 4, "vit": 11}[network] == len(run.layers)
    assert all(0 < layer.update <= layer.full_rank for layer in run.layers)
    again = track_digits(network, "adam", steps=4, every=2, digits=glyph_digits(300))
    assert run.layers == again.layers


def test_digits_from_a_file(tmp_path):
    x = np.zeros((20, 28, 28), np.uint8)
    x[:, :14] = (10 * np.arange(20, dtype=np.uint8))[:, None, None]
    y = np.arange(20) // 2
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    images, labels = read_digits(tmp_path / "digits.npz", seed=1)
    assert images.shape == (20, 1, 16, 16)
    assert sorted(labels.tolist()) == sorted(y.tolist())
    assert labels.tolist() != y.tolist()
    ink = images[:, 0, 2, 2].argsort()
    assert (labels[ink].diff() >= 0).all()  # images and labels stay together


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda p: glyph_digits(0), ValueError, "count is 0"),
        (lambda p: glyph_digits(1, noise=-1.0), ValueError, "noise is -1.0"),
        (lambda p: make_network("rnn"), ValueError, "no network 'rnn'; known: mlp, cnn, vit"),
        (lambda p: track_digits("mlp", "lion"), ValueError, "no optimizer 'lion'; known: sgd, adam"),
        (lambda p: track_digits("mlp", "sgd", steps=3, every=4), ValueError, "every is 4 and steps 3"),
        (
            lambda p: track_digits(
                "mlp", "sgd", digits=(torch.full((20, 1, 16, 16), torch.nan), torch.zeros(20).long())
            ),
            FloatingPointError,
            "loss of mlp under sgd is nan at step 1",
        ),
        (lambda p: read_digits(p / "none.npz"), FileNotFoundError, "none.npz"),
        (lambda p: read_digits(_file(p, z=np.zeros(1))), ValueError, "arrays x and y"),
        (lambda p: read_digits(_file(p, x=np.zeros((2, 4)), y=np.zeros(2))), ValueError, r"has x \(2, 4\)"),
        (lambda p: read_digits(_text(p)), ValueError, "arrays x and y"),
    ],
)
def test_bad_input(call, error, said, tmp_path):
    with pytest.raises(error, match=said):
        call(tmp_path)


def _file(folder, **arrays):
    np.savez(folder / "bad.npz", **arrays)
    return folder / "bad.npz"


def _text(folder):
    (folder / "bad.npz").write_text("text")
    return folder / "bad.npz"
