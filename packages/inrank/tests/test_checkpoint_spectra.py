import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from inrank.checkpoint_spectra import update_spectra
from inrank.config import InRankConfig
from inrank.layers import InRankEfficientLinear, InRankLinear


def _save(model, path):
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return path


def _network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(6, 5))


def test_dense_weights(tmp_path):
    before, after = _network(0), _network(1)
    found = update_spectra(_save(before, tmp_path / "a.safetensors"), _save(after, tmp_path / "b.safetensors"))
    assert [record.layer for record in found.records] == ["0", "2"]
    assert found.skipped["2.bias"] == "it has 1 dimensions"
    for record in found.records:
        index = int(record.layer)
        a, b = (m[index].weight.detach().flatten(1) for m in (before, after))
        np.testing.assert_allclose(record.update, torch.linalg.svdvals(b - a), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(record.weight, torch.linalg.svdvals(b), rtol=1e-4, atol=1e-6)
    assert len(update_spectra(tmp_path / "a.safetensors", tmp_path / "b.safetensors", exclude="0").records) == 1
    only = update_spectra(tmp_path / "a.safetensors", tmp_path / "b.safetensors", include=r"\d", top=2).records[1]
    assert only.update.shape == (2,)


def test_folders_and_shards(tmp_path):
    before, after = _network(0), _network(1)
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    _save(before, tmp_path / "before" / "model.safetensors")
    state = after.state_dict()
    parts = {"x-1.safetensors": ["0.weight"], "x-2.safetensors": ["2.weight"]}
    for name, keys in parts.items():
        save_file({key: state[key] for key in keys}, tmp_path / "after" / name)
    weight_map = {key: name for name, keys in parts.items() for key in keys}
    (tmp_path / "after" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert [r.layer for r in update_spectra(tmp_path / "before", tmp_path / "after").records] == ["0", "2"]


@pytest.mark.parametrize("kind", [InRankLinear, InRankEfficientLinear])
def test_low_rank_layers_of_two_ranks(tmp_path, kind):
    torch.manual_seed(0)
    model = nn.Sequential(kind(10, 8, config=InRankConfig(rank=2, buffer=1)))
    before = _save(model, tmp_path / "a.safetensors")
    start = model[0].dense_weight(torch.float64)
    model[0].resize(4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model[0].u.add_(0.1)
    found = update_spectra(before, _save(model, tmp_path / "b.safetensors"))
    (record,) = found.records
    np.testing.assert_allclose(
        record.update, torch.linalg.svdvals(model[0].dense_weight(torch.float64) - start), atol=1e-6
    )
    assert (record.weight is None) == (kind is InRankLinear)
    assert record.update_ranks.energy is not None


def test_reasons_for_skipping(tmp_path):
    config = InRankConfig(rank=2, buffer=1)
    kinds = {
        "merged": (nn.Linear(8, 8), InRankEfficientLinear(8, 8, config=config)),
        "shape": (nn.Linear(8, 8), nn.Linear(8, 4)),
        "factors": (InRankEfficientLinear(8, 8, config=config), InRankEfficientLinear(8, 9, config=config)),
        "kept": (InRankLinear(8, 8, config=config), InRankLinear(8, 8, config=config)),
        "fine": (nn.Linear(8, 8), nn.Linear(8, 8)),
    }
    paths = [_save(nn.ModuleDict({k: v[i] for k, v in kinds.items()}), tmp_path / f"{i}.safetensors") for i in (0, 1)]
    save_file({"n": torch.ones(2, 2, dtype=torch.int64)}, tmp_path / "integers.safetensors")
    skipped = update_spectra(*paths).skipped
    assert skipped["merged"] == "dense before, low rank after; merge it first"
    assert skipped["shape"] == "its shape was (8, 8) and is (4, 8)"
    assert skipped["factors"] == "its shape was (8, 8) and is (9, 8)"
    assert skipped["kept"] == "W_0 is not the same in both"
    with pytest.raises(ValueError, match="not in the first checkpoint"):
        update_spectra(tmp_path / "integers.safetensors", paths[1])
    with pytest.raises(ValueError, match="not of a floating type"):
        update_spectra(tmp_path / "integers.safetensors", tmp_path / "integers.safetensors")


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        update_spectra(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors in"):
        update_spectra(tmp_path, tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        update_spectra(tmp_path / "x.safetensors", tmp_path / "x.safetensors")
    good = _save(nn.Linear(2, 2), tmp_path / "good.safetensors")
    with pytest.raises(ValueError, match="none is matched"):
        update_spectra(good, good, include="fc")
    bad = nn.Linear(2, 2)
    nn.init.constant_(bad.weight, torch.nan)
    with pytest.raises(FloatingPointError, match="weight weight: the weight holds"):
        update_spectra(good, _save(bad, tmp_path / "nan.safetensors"))
