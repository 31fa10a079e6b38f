import json
import sys

import pytest
import torch

from inrank import InRankConfig
from inrank.wrapping import wrap

transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
]


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        row = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": row, "labels": row}


def trainer_of(folder, callback, steps=6, **changes):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=50, n_positions=12, n_embd=24, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    config = InRankConfig(mode="full", rank=1, buffer=2, max_rank=8, warmup_steps=1, check_every=2, threshold=0.99)
    wrap(model, include=r".*mlp\.c_(fc|proj)", config=config)
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        save_steps=4,
        logging_steps=2,
        disable_tqdm=True,
        seed=3,
        **changes,
    )
    return transformers.Trainer(model, args, train_dataset=Tokens(), callbacks=[callback])


def test_ranks_grow_are_saved_and_resume_under_the_trainer(tmp_path):
    from inrank.huggingface import InRankCallback

    callback = InRankCallback(log=tmp_path / "events.jsonl")
    trainer = trainer_of(tmp_path / "a", callback)
    trainer.train()
    controller = callback.controller
    assert controller.steps == 6  # optimizer steps, not the 12 forwards
    assert [event.step for event in controller.events if event.kind == "grow"]
    assert controller.report().checks == 6  # two layers at steps 2, 4 and 6
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == len(controller.events)
    assert any(entry.get("inrank/mean_rank", 0) > 1 for entry in trainer.state.log_history)
    saved = json.loads((tmp_path / "a" / "checkpoint-4" / "inrank.json").read_text())
    assert sorted(saved["layers"]) == ["transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"]
    assert saved["layers"]["transformer.h.0.mlp.c_fc"]["ranks"]["rank"] > 1

    folder = tmp_path / "a" / "checkpoint-4"
    again = InRankCallback(resume_from=folder)
    resumed = trainer_of(tmp_path / "a", again)
    resumed.train(resume_from_checkpoint=str(folder))
    assert again.controller.events == controller.events
    expected, found = trainer.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_resuming_without_ranks_is_an_error(tmp_path):
    from inrank.huggingface import InRankCallback

    with pytest.raises(FileNotFoundError, match=r"inrank\.json is not there"):
        trainer_of(tmp_path / "b", InRankCallback(resume_from=True))
    callback = InRankCallback()
    trainer = trainer_of(tmp_path / "b", callback)
    trainer.state.global_step = 4
    with pytest.raises(ValueError, match="training is resumed at step 4, but ranks were not"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model, optimizer=None)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "inrank.huggingface", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'inrank\[transformers\]'"):
        import inrank.huggingface  # noqa: F401
