"""The trainer: every method learns, a killed run goes on bit for bit, and what is not finite stops it."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from inrank.language.costs import training_flops
from inrank.language.training import NonFiniteError, Trainer
from inrank.wrapping import low_rank_layers

METHODS = ["full-rank", "inrank-efficient", "inrank-full", "fixed-rank", "lora"]


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(small, texts, method):
    trainer = Trainer(small(f"method.name={method}", "trainer.steps=30"), texts=texts)
    last = trainer.run()
    losses = [line["loss"] for line in trainer.history if line["kind"] == "validation"]
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256
    assert last == losses[-1] < losses[0] - 0.5
    assert bool(trainer.ranks()) == (method != "full-rank")
    grown = [line for line in trainer.history if line["kind"] == "rank"]
    assert bool(grown) == method.startswith("inrank")


@pytest.mark.parametrize("method", METHODS)
def test_dense_start_is_the_same_in_all_methods(small, texts, method):
    trainer = Trainer(small(f"method.name={method}"), texts=texts)
    full = Trainer(small("method.name=full-rank"), texts=texts)
    assert torch.equal(trainer.model.token_embedding.weight, full.model.token_embedding.weight)
    if method in ("inrank-full", "lora"):
        tokens, _ = trainer.windows.batch(0, 2)
        assert torch.equal(trainer.model(tokens), full.model(tokens))


def test_factors_have_learning_rates_of_their_own(small, texts):
    options = ("optimizer.learning_rate=1e-3", "optimizer.factor_rate=0.5", "optimizer.factor_ratio=4.0")
    trainer = Trainer(small("method.name=fixed-rank", *options), texts=texts)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.step()
    # Adam's first step is the learning rate wherever there is a gradient
    moved = {n: (p - before[n]).abs().max().item() for n, p in trainer.model.named_parameters()}
    kinds = {"mlp.fc1.u": 2e-3, "mlp.fc1.v": 5e-4, "mlp.fc2.u": 2e-3, "mlp.fc2.v": 5e-4, "attn.qkv.weight": 1e-3}
    for ending, rate in kinds.items():
        (size,) = [size for name, size in moved.items() if name.endswith(ending)]
        assert size == pytest.approx(rate, rel=1e-2), ending


def test_accumulation_changes_nothing_but_rounding(small, texts):
    whole = Trainer(small("method.name=full-rank", "trainer.batch_size=4"), texts=texts)
    parts = Trainer(small("method.name=full-rank", "trainer.batch_size=1"), texts=texts)
    assert whole.step() == pytest.approx(parts.step(), rel=1e-5)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        ("method.name=inrank-efficient", "model.dropout=0.1"),
        ("method.name=inrank-full", "method.finalize_at=9"),
        ("method.name=full-rank", "optimizer.name=sgd"),
    ],
)
def test_resumed_run_is_the_same_to_the_bit(small, texts, tmp_path, options):
    config = small(*options)
    undisturbed = Trainer(config, tmp_path / "a", texts)
    undisturbed.run()
    stopped = Trainer(config, tmp_path / "b", texts)
    stopped.run(until=6)  # the last checkpoint is of step 4; steps 5 and 6 are lost
    resumed = Trainer(config, tmp_path / "b", texts)
    assert resumed.resume()
    assert resumed.counters.step == 4
    resumed.run()
    assert same(weights(resumed), weights(undisturbed))
    if "inrank" in options[0]:
        events = [event.step for event in resumed.controller.events]
        assert events == [event.step for event in undisturbed.controller.events]
        assert min(events) <= 4 < max(events)
    logs = [[json.loads(line) for line in (tmp_path / n / "log.jsonl").read_text().splitlines()] for n in "ab"]
    for log in logs:
        for line in log:
            line.pop("cpu_seconds", None)
    assert logs[0] == logs[1]
    other = Trainer(small(*options, "seed=1"), texts=texts)
    other.run()
    assert not same(weights(other), weights(undisturbed))


def test_stage_two_has_fixed_balanced_factors(small, texts):
    trainer = Trainer(small("method.name=inrank-full", "method.finalize_at=6"), texts=texts)
    trainer.run()
    for layer in low_rank_layers(trainer.model).values():
        assert not layer.growing
        assert layer.buffer == 0
    (line,) = [line for line in trainer.history if line["kind"] == "finalize"]
    assert (line["step"], line["ranks"]) == (6, trainer.ranks())


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from inrank.language.run_folder import RunFolder
from inrank.language.training import Trainer
folder = Path(sys.argv[1])
trainer = Trainer(RunFolder(folder).config(), folder, report=lambda done, line: print(done, flush=True))
trainer.resume()
trainer.run()
"""


@pytest.mark.slow
def test_killed_run_goes_on(small, texts, tmp_path):
    config = small("trainer.steps=40", "trainer.checkpoint_every=1", "trainer.evaluate_every=40")
    undisturbed = Trainer(config, texts=texts)
    undisturbed.run()
    folder = tmp_path / "run"
    Trainer(config, folder, texts).save()
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE) as process:
        for _ in range(10):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    resumed = Trainer(config, folder, texts)
    assert resumed.resume()
    assert 9 <= resumed.counters.step < 40
    resumed.run()
    assert same(weights(resumed), weights(undisturbed))


def test_broken_weight_is_named_and_the_checkpoint_stays(small, texts, tmp_path):
    trainer = Trainer(small("method.name=full-rank"), tmp_path, texts)
    trainer.run(until=4)
    trainer.model.blocks[0].mlp.fc1.weight.data[3, 3] = float("nan")
    with pytest.raises(
        NonFiniteError, match=r"step 4: the weight blocks.0.mlp.fc1.weight is not finite.*step-00000004"
    ):
        trainer.step()
    again = Trainer(small("method.name=full-rank"), tmp_path, texts)
    assert again.resume()
    assert all(torch.isfinite(value).all() for value in weights(again).values())


def test_broken_factor_is_named(small, texts):
    trainer = Trainer(small(), texts=texts)
    trainer.model.blocks[0].mlp.fc2.u.data[0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"step 0: the weight blocks.0.mlp.fc2.u is not finite"):
        trainer.step()


def test_two_runs_do_not_share_a_folder(small, texts, tmp_path):
    Trainer(small(), tmp_path, texts)
    with pytest.raises(ValueError, match="holds a run with other settings"):
        Trainer(small("seed=2"), tmp_path, texts)


def test_damaged_checkpoint_is_passed_over(small, texts, tmp_path):
    Trainer(small(), tmp_path, texts).run()
    newest = tmp_path / "checkpoints" / "step-00000012"
    (newest / "model.safetensors").write_bytes(b"")
    trainer = Trainer(small(), tmp_path, texts)
    assert trainer.resume()
    assert trainer.counters.step == 8
    shutil.rmtree(tmp_path / "checkpoints")
    assert not Trainer(small(), tmp_path, texts).resume()


def test_flops_budget_ends_the_run(small, texts):
    one = Trainer(small(), texts=texts)
    one.step()
    trainer = Trainer(small(f"trainer.flops={5 * one.counters.flops}", "inrank.warmup_steps=100"), texts=texts)
    trainer.run()
    assert trainer.counters.step == 5


@pytest.mark.parametrize("method", ["full-rank", "fixed-rank", "lora"])
def test_flops_are_those_that_torch_counts(small, texts, method):
    trainer = Trainer(small(f"method.name={method}", "trainer.batch_size=4"), texts=texts)
    tokens, targets = trainer.windows.batch(0, 4)
    with FlopCounterMode(display=False) as counter:
        trainer.model(tokens, targets).backward()
    shape = trainer.config.model.shape(256)
    ours = 4 * 16 * training_flops(trainer.model, shape)
    # torch counts attention without its causal half
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_accelerate_gives_the_same_run(small, texts):
    plain = Trainer(small(), texts=texts)
    through = Trainer(small("trainer.engine=accelerate"), texts=texts)
    assert through.run() == pytest.approx(plain.run(), rel=1e-5)
    assert through.ranks() == plain.ranks()


WORKER = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from inrank.language.presets import RunConfig
from inrank.language.training import Trainer
trainer = Trainer(RunConfig.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]))
loss = trainer.run()
if trainer.engine.process == 0:
    print(json.dumps([loss, trainer.engine.processes, list(trainer.ranks().values())]))
"""


@pytest.mark.slow
def test_two_processes_train_as_one(small, texts, tmp_path):
    options = ["inrank.storage=reserve", "method.finalize_at=9", "trainer.steps=12"]
    alone = Trainer(small(*options), texts=texts)
    expected = alone.run()
    config = json.dumps(small(*options, "trainer.engine=accelerate").to_dict())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, config, str(tmp_path)],
            env={**os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    printed = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    loss, processes, ranks = json.loads(printed[0].splitlines()[-1])
    assert processes == 2
    assert ranks == list(alone.ranks().values())
    assert loss == pytest.approx(expected, rel=1e-3)
    resumed = Trainer(small(*options, "trainer.engine=accelerate"), tmp_path, texts)
    assert resumed.folder.latest().name == "step-00000012"


def test_hugging_face_model_is_trained(small, texts):
    trainer = Trainer(small("model.huggingface=true", "method.layers=all", "trainer.steps=4"), texts=texts)
    trainer.run()
    assert {name.split("h.0.")[1] for name in trainer.ranks()} == {
        "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj",
    }  # fmt: skip


def test_text_that_is_too_short_is_named(small, texts):
    short = dataclasses.replace(texts, validation=texts.validation[:5])
    with pytest.raises(ValueError, match=r"validation split: the text has 5 tokens, .* \(data.validation is the part"):
        Trainer(small(), texts=short)
    with pytest.raises(ValueError, match="training split: the text has 5 tokens"):
        Trainer(small(), texts=dataclasses.replace(texts, train=texts.train[:5]))


def test_damaged_files_of_a_run_are_named(small, texts, tmp_path):
    trainer = Trainer(small(), tmp_path, texts)
    trainer.run(until=1)
    trainer.save()
    (tmp_path / "log.jsonl").write_text('{"step": 0')
    with pytest.raises(ValueError, match=r"log\.jsonl is damaged"):
        Trainer(small(), tmp_path, texts).resume()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        Trainer(small(), tmp_path, texts)


def test_galore_cannot_be_resumed_and_says_so(small, texts, tmp_path):
    trainer = Trainer(small(), tmp_path, texts)
    trainer.config = dataclasses.replace(
        trainer.config, method=dataclasses.replace(trainer.config.method, name="galore")
    )
    with pytest.raises(ValueError, match=r"a galore run cannot be resumed: .* train it anew, with another --out"):
        trainer.resume()


def test_galore_without_its_package_says_so(small, texts):
    try:
        import galore_torch  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="needs galore-torch: `pip install galore-torch`"):
            Trainer(small("method.name=galore"), texts=texts)
    else:
        Trainer(small("method.name=galore"), texts=texts).step()
