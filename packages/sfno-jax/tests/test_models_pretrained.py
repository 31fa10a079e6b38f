"""Saved models, statistics, predictions in physical units."""

import json

import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from sfno_jax.models import FNO, SFNO, ChannelStatistics, FNOConfig, SFNOConfig, from_pretrained, save_pretrained
from sfno_jax.models import pretrained as module
from sfno_jax.models.weights import named_weights

OPTIONS = {"nlat": 8, "nlon": 16, "scale_factor": 1, "embed_dim": 3, "num_layers": 1, "in_channels": 2}
STATISTICS = {
    "mean": [5e4, 0.0],
    "std": [2e3, 1e-5],
    "channels": ["z500", "vorticity"],
    "output_mean": [5e4, 0.0, 1.0],
    "output_std": [2e3, 1e-5, 2.0],
    "output_channels": ["z500", "vorticity", "divergence"],
}


@pytest.fixture(scope="module")
def model():
    config = SFNOConfig(**OPTIONS, position_embedding="spectral", grid="legendre-gauss", drop_rate=0.5)
    return SFNO(config, rngs=nnx.Rngs(3))


@pytest.fixture
def saved(model, tmp_path):
    return model.save_pretrained(tmp_path / "model", statistics=STATISTICS)


def physical(*batch):
    x = np.random.default_rng(0).standard_normal((*batch, 2, 8, 16))
    return (x * np.array([2e3, 1e-5])[:, None, None] + np.array([5e4, 0])[:, None, None]).astype(np.float32)


def test_saved_model_is_the_same_model(model, saved):
    again = SFNO.from_pretrained(saved)
    assert again.config == model.config
    for name, array in named_weights(model).items():
        np.testing.assert_array_equal(named_weights(again)[name], array)
    model.statistics = again.statistics
    x = physical(2)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    model.statistics = None
    card = (saved / "README.md").read_text()
    assert "z500" in card
    assert "Bonev" in card
    assert '"embed_dim": 3' in card
    files = sorted(path.name for path in saved.iterdir())
    assert len(files) == 3, files


def test_predict_works_in_physical_units(saved):
    model = SFNO.from_pretrained(saved)
    x = physical()
    z = model.statistics.normalise(x).astype(np.float32)
    y = np.asarray(model(z), np.float64)
    expected = (
        y * np.array(STATISTICS["output_std"])[:, None, None] + np.array(STATISTICS["output_mean"])[:, None, None]
    )
    got = model.predict(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(x.astype(np.float64)), expected, rtol=1e-5, atol=1e-6)
    named = model.predict({"vorticity": x[1], "z500": x[0]})
    np.testing.assert_array_equal(named["divergence"], got[2])
    with pytest.raises(ValueError, match=r"missing \['z500'\], unknown \['z850'\]"):
        model.predict({"vorticity": x[1], "z850": x[0]})
    with pytest.raises(ValueError, match="in_channels=2"):
        model.predict(physical()[:, :7])


def test_predict_needs_statistics(model):
    with pytest.raises(ValueError, match="no statistics"):
        model.predict(physical())


def test_saving_again_replaces_the_weights(saved):
    other = SFNO(SFNOConfig(**OPTIONS), rngs=nnx.Rngs(9))
    save_pretrained(other, saved, card="mine")
    assert len(list(saved.glob("*.safetensors"))) == 1
    assert from_pretrained(saved).config == other.config
    assert from_pretrained(saved).statistics is None
    assert (saved / "README.md").read_text() == "mine"


@pytest.mark.parametrize("killed_at", ["README.md", "config.json"])
def test_a_killed_save_leaves_the_model_before(saved, killed_at, monkeypatch):
    before = named_weights(from_pretrained(saved))
    write = module.write_atomically

    def die(path, data):
        if path.name == killed_at:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(module, "write_atomically", die)
    with pytest.raises(KeyboardInterrupt):
        save_pretrained(SFNO(SFNOConfig(**OPTIONS), rngs=nnx.Rngs(9)), saved)
    after = named_weights(from_pretrained(saved))
    assert all((after[name] == before[name]).all() for name in before)


def test_fno_and_wrong_architecture(tmp_path):
    fno = FNO(FNOConfig(**OPTIONS), rngs=nnx.Rngs(0))
    fno.save_pretrained(tmp_path)
    assert isinstance(from_pretrained(tmp_path), FNO)
    with pytest.raises(ValueError, match="holds an FNO, not an SFNO"):
        SFNO.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="dict"):
        save_pretrained({}, tmp_path)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_damaged_folders_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="org/name"):
        from_pretrained(tmp_path / "nothing" / "here" / "at-all")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"config.json"):
        from_pretrained(tmp_path / "empty")
    with pytest.raises(ValueError, match="revision"):
        from_pretrained(saved, revision="main")
    weights = next(saved.glob("*.safetensors"))
    good, description = weights.read_bytes(), (saved / "config.json").read_text()
    weights.write_bytes(good[:-1] + b"\x00" if good[-1] else good[:-1] + b"\x01")
    with pytest.raises(ValueError, match="SHA-256"):
        from_pretrained(saved)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"weights .* are missing"):
        from_pretrained(saved)
    for changes, message in (
        ({"architecture": "GNN"}, "unknown architecture 'GNN'"),
        ({"format": "other"}, r"sfno_jax\.convert"),
        ({"format_version": 99}, "format_version 99"),
        ({"config": {"nlat": 8, "nlon": 16, "embed_dims": 3}}, "did you mean 'embed_dim'"),
        ({"weights": {"file": "../x", "sha256": ""}}, "outside its folder"),
    ):
        (saved / "config.json").write_text(description)
        edit(saved, **changes)
        with pytest.raises(ValueError, match=message):
            from_pretrained(saved)
    (saved / "config.json").write_text(description[:40])
    with pytest.raises(ValueError, match="not JSON"):
        from_pretrained(saved)


def test_weights_of_another_configuration_list_every_difference(saved):
    edit(saved, config={**json.loads((saved / "config.json").read_text())["config"], "embed_dim": 4, "bias": True})
    with pytest.raises(ValueError, match=r"missing: encoder\.layers\.0\.bias") as error:
        from_pretrained(saved)
    assert "shape of encoder.layers.0.weight: model (4, 2), given (3, 2)" in str(error.value)


def test_hub_ids_are_fetched_by_file(saved, tmp_path, monkeypatch):
    asked = []

    def download(repository, name, revision=None):
        asked.append((repository, name, revision))
        return str(saved / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    model = from_pretrained("someone/sfno", revision="v1")
    weights = json.loads((saved / "config.json").read_text())["weights"]["file"]
    assert asked == [("someone/sfno", "config.json", "v1"), ("someone/sfno", weights, "v1")]
    assert model.statistics.channels == ("z500", "vorticity")


def test_metadata_of_the_weights(saved):
    with safetensors.safe_open(next(saved.glob("*.safetensors")), "numpy") as file:
        assert file.metadata() == {"format": "sfno-jax", "architecture": "SFNO"}


BAD_STATISTICS = [
    ({"mean": [0, 0]}, r"missing \['std'\]"),
    ({"mean": [0, 0], "std": [1, 1], "sdt": [1]}, r"unknown \['sdt'\]"),
    ({"mean": [0], "std": [1, 1]}, "mean has 1 entries; expected 2"),
    ({"mean": [0, 0], "std": [1, 0]}, "must be positive"),
    ({"mean": [0, float("nan")], "std": [1, 1]}, "finite"),
    ({"mean": [0, 0], "std": [1, 1], "channels": ["u"]}, "channels has 1 entries"),
]


@pytest.mark.parametrize(("values", "message"), BAD_STATISTICS)
def test_bad_statistics(values, message):
    with pytest.raises(ValueError, match=message):
        ChannelStatistics.from_dict(values, 2, 2)


def test_output_statistics_default_to_the_input_s():
    statistics = ChannelStatistics.from_dict({"mean": [1, 2], "std": [3, 4], "channels": ["u", "v"]}, 2, 2)
    assert statistics.output_mean == (1.0, 2.0)
    assert statistics.output_channels == ("u", "v")
    assert ChannelStatistics.from_dict(statistics.to_dict(), 2, 2) == statistics
    with pytest.raises(ValueError, match="output_mean is needed"):
        ChannelStatistics.from_dict({"mean": [1, 2], "std": [3, 4]}, 2, 3)
