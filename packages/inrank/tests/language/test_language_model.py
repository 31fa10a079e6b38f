"""A trained model is saved, opened, merged, and writes the same text."""

import pytest
import torch

from inrank.language.language_model import LanguageModel
from inrank.language.training import Trainer
from inrank.wrapping import low_rank_layers


@pytest.fixture(scope="module", params=["inrank-efficient", "inrank-full", "full-rank"])
def run(request, small, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / request.param
    trainer = Trainer(small(f"method.name={request.param}"), folder, texts)
    trainer.run()
    return folder, trainer


def test_opened_run_has_the_trained_weights(run, tmp_path):
    folder, trainer = run
    model = LanguageModel.from_pretrained(folder)
    written = model.generate("the state", 20, seed=1)
    saved = LanguageModel.from_pretrained(model.save_pretrained(tmp_path / "model"))
    for opened in (model, saved):
        assert {n: layer.rank for n, layer in low_rank_layers(opened.model).items()} == trainer.ranks()
        for name, value in trainer.model.state_dict().items():
            assert torch.equal(opened.model.state_dict()[name], value), name
        assert opened.generate("the state", 20, seed=1) == written
    assert model.generate("the state", 20, seed=2) != written
    card = (tmp_path / "model" / "README.md").read_text()
    assert "million parameters" in card
    assert all(f"| {name} | {rank} |" in card for name, rank in trainer.ranks().items())


def test_merged_model_computes_the_same(run, tmp_path):
    folder, _ = run
    model = LanguageModel.from_pretrained(folder)
    text = "the state of the union is strong and free " * 3
    before = model.loss(text)
    assert 0 < before < 5.6
    assert model.merge().loss(text) == pytest.approx(before, rel=1e-5)
    assert not low_rank_layers(model.model)
    again = LanguageModel.from_pretrained(model.save_pretrained(tmp_path / "dense"))
    assert again.merged
    assert again.loss(text) == pytest.approx(before, rel=1e-5)


def test_a_models_files_do_not_hide_a_runs(run):
    folder, _ = run
    with pytest.raises(ValueError, match="holds a training run; save the model in a folder of its own"):
        LanguageModel.from_pretrained(folder).merge().save_pretrained(folder)
    assert not LanguageModel.from_pretrained(folder).merged


def test_neither_a_folder_nor_on_the_hub(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def offline(name):
        raise hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(FileNotFoundError, match=r"no folder runs/tiny here, and as a hub id .* no connection"):
        LanguageModel.from_pretrained("runs/tiny")


def test_missing_models(tmp_path, small, texts):
    with pytest.raises(FileNotFoundError, match="no run in"):
        LanguageModel.from_pretrained(tmp_path)
    Trainer(small(), tmp_path / "begun", texts)
    with pytest.raises(FileNotFoundError, match="has not reached its first checkpoint"):
        LanguageModel.from_pretrained(tmp_path / "begun")
    trainer = Trainer(small(), texts=texts)
    model = LanguageModel(trainer.model, texts.tokenizer, trainer.config)
    with pytest.raises(ValueError, match="the text has 3 tokens"):
        model.loss("abc")
