"""The loop: learning, schedules, budgets, exact resume after SIGKILL, non-finite losses."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sfno_jax.data.trajectories import ArrayTrajectories, WindowSampler
from sfno_jax.losses import SphereLoss
from sfno_jax.training.checkpoint import (
    ArchitectureError,
    CheckpointStore,
    DamagedCheckpointWarning,
    named_arrays,
)
from sfno_jax.training.config import OptimizerConfig, ScheduleConfig, StageConfig, TrainingConfig
from sfno_jax.training.loop import Trainer, TrainingError, learning_rate, load_weights
from sfno_jax.training.stabiliser import Stabiliser
from sfno_jax.training.step import ModelParts, make_optimizer, window_loss

# one definition for this process and for the child that is killed
CASE = '''
import numpy as np
from flax import nnx
from sfno_jax.data.trajectories import ArrayTrajectories
from sfno_jax.models import build_model
from sfno_jax.training import Stabiliser, Trainer, TrainingConfig

CHANNELS = ("geopotential", "vorticity")

def waves(count=3, times=12, nlat=8, nlon=16, seed=0):
    """Patterns that turn eastward by one column a step: (count, times, 2, nlat, nlon)."""
    rng = np.random.default_rng(seed)
    theta = (np.arange(nlat) + 0.5) * np.pi / nlat
    m = np.arange(1, 4)[:, None, None]
    amplitude = rng.normal(size=(count, 2, 3, 1, 1)) * np.sin(theta)[:, None] ** m
    phase = rng.uniform(0, 2 * np.pi, size=(count, 2, 3, 1, 1))
    lam = 2 * np.pi * np.arange(nlon) / nlon
    first = (amplitude * np.cos(m * lam + phase)).sum(2)
    return np.stack([np.roll(first, t, -1) for t in range(times)], 1).astype(np.float32)

def make(folder, stages, model=None, optimizer=None, trainer=None, schedule=None, seed=1, **kwargs):
    config = TrainingConfig.from_dict({
        "seed": seed,
        "model": {"kind": "sfno", "embed_dim": 6, "num_layers": 1, "scale_factor": 1,
                  "residual_prediction": True, **(model or {})},
        "optimizer": optimizer or {},
        "schedule": schedule or {},
        "trainer": {"batch_size": 4, "steps_per_dispatch": 3, "checkpoint_every": 6,
                    "validate_every": 12, **(trainer or {})},
        "stages": stages,
    })
    network = config.model.operator_config(8, 16, "legendre-gauss", 2)
    data = waves()
    return Trainer(build_model(network, nnx.Rngs(config.seed)), config, ArrayTrajectories(data),
                   ArrayTrajectories(waves(2, seed=5)), folder=folder, grid="legendre-gauss",
                   **kwargs)

def interruptible(folder):
    """Dropout, noise, averages, a plateau schedule: all state there is."""
    return make(
        folder,
        [{"steps": 144, "n_future": 2, "learning_rate": 3e-3, "noise": 0.01, "score": "last"}],
        model={"drop_rate": 0.1},
        optimizer={"ema_decay": 0.99, "weight_decay": 1e-3},
        schedule={"kind": "plateau", "patience": 1},
        stabiliser=Stabiliser.create(8, 16, "legendre-gauss", CHANNELS, conserve=CHANNELS[:1]),
    )
'''
exec(CASE)


def bits(tree):
    return {name: a.tobytes() for name, a in named_arrays(tree).items()}


def log_lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_training_learns_the_motion(tmp_path):
    trainer = make(  # noqa: F821
        tmp_path,
        [{"steps": 150, "learning_rate": 1e-2}, {"steps": 30, "n_future": 2, "learning_rate": 2e-3}],
        trainer={"checkpoint_every": 60},
    )
    before = trainer.validate()
    end = trainer.run()
    assert end.done
    assert end.step == 180
    assert trainer.validate() < 0.4 * before
    entries = [entry for entry in log_lines(tmp_path) if "loss" in entry]
    assert entries[0]["step"] == 3
    assert entries[-1]["step"] == 180
    assert entries[-1]["loss"] < 0.2 * entries[0]["loss"]
    assert any("validation" in entry for entry in log_lines(tmp_path))
    config = TrainingConfig.from_dict(json.loads((tmp_path / "config.json").read_text()))
    assert config == trainer.config
    again = make(tmp_path, [{"steps": 1}])  # noqa: F821
    again.load_weights(tmp_path)
    assert again.validate() == pytest.approx(trainer.validate(), rel=1e-6)


def test_killed_at_any_instant_it_resumes_bit_for_bit(tmp_path):
    whole = interruptible(tmp_path / "whole")  # noqa: F821
    whole.run()
    cut = tmp_path / "cut"
    code = f"{CASE}\nt = interruptible({str(cut)!r})\nt.resume()\nt.run()\n"
    child = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < deadline:
        steps = [int(p.name[5:]) for p in (cut / "checkpoints").glob("step-*")]
        if max(steps, default=0) >= 12:
            break
        time.sleep(0.003)
    assert child.poll() is None, "the child ended before it was killed"
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    resumed = interruptible(cut)  # noqa: F821
    assert resumed.resume()
    assert 0 < resumed.progress.step < 144
    resumed.run()
    assert resumed.progress.step == whole.progress.step == 144
    assert bits(resumed.state) == bits(whole.state)
    assert resumed.progress.plateau_scale == whole.progress.plateau_scale

    def series(folder):
        entries = log_lines(folder)
        return [(e["step"], e.get("loss"), e.get("validation")) for e in entries]

    assert series(cut) == series(tmp_path / "whole")


def test_resume_continues_from_the_last_good_checkpoint(tmp_path):
    trainer = make(tmp_path, [{"steps": 12}])  # noqa: F821
    trainer.run()
    newest = trainer.store.paths()[-1]
    (newest / "weights.safetensors").write_bytes(b"torn")
    again = make(tmp_path, [{"steps": 12}])  # noqa: F821
    with pytest.warns(DamagedCheckpointWarning, match=r"step-00000012.*going on from step-00000006"):
        assert again.resume()
    assert again.progress.step == 6
    again.run()
    assert bits(again.state) == bits(trainer.state)


def test_resume_refuses_another_architecture_and_another_run(tmp_path):
    stages = [{"steps": 3}]
    make(tmp_path, stages).run()  # noqa: F821
    with pytest.raises(ArchitectureError, match=r"another network: .*float32\["):
        make(tmp_path, stages, model={"embed_dim": 5}).resume()  # noqa: F821
    with pytest.raises(ArchitectureError, match="another network"):
        make(tmp_path / "new", stages, model={"embed_dim": 5}).load_weights(tmp_path)  # noqa: F821
    with pytest.raises(TrainingError, match=r"another \[stages\].*load_weights"):
        make(tmp_path, [{"steps": 4}]).resume()  # noqa: F821
    with pytest.raises(TrainingError, match=r"another \[trainer\]"):
        make(tmp_path, stages, trainer={"batch_size": 3}).resume()  # noqa: F821
    assert make(tmp_path, stages, trainer={"keep": 9}).resume()  # noqa: F821
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_weights(tmp_path / "nowhere", None)
    assert not make(tmp_path / "empty", stages).resume()  # noqa: F821


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_good_checkpoint(tmp_path, where):
    trainer = make(  # noqa: F821
        tmp_path, [{"steps": 6}, {"steps": 12, "learning_rate": 1e30 if where == "loss" else 1e-3}]
    )
    if where == "gradient":
        # 1e38 squared is infinite; 1e15 gives a finite loss 1e30 whose gradient norm overflows
        trainer.train.states[:] *= np.float32(3e18)
    with pytest.raises(TrainingError, match=r"at step \d+ \(stage \d, learning rate .*checkpoint"):
        trainer.run()
    checkpoint = CheckpointStore(tmp_path / "checkpoints").latest()
    if where == "loss":
        assert checkpoint.meta["progress"]["step"] == 6
        assert all(np.isfinite(a).all() for a in checkpoint.groups["weights"].values())
    else:
        assert checkpoint is None


def test_time_budget_stops_by_the_clock_and_cools_down(tmp_path):
    trainer = make(tmp_path, [{"seconds": 0.5, "learning_rate": 1e-3}])  # noqa: F821
    end = trainer.run()
    assert end.step > 3
    assert end.stage_seconds >= 0.5
    assert end.stage_seconds < 5
    rates = [entry["learning_rate"] for entry in log_lines(tmp_path) if "loss" in entry]
    assert rates[0] == pytest.approx(1e-3)
    assert rates == sorted(rates, reverse=True)


def test_learning_rate_shapes():
    stage = StageConfig(steps=110, learning_rate=2.0)
    schedule = ScheduleConfig(kind="cosine", warmup=10, final=0.1)
    assert learning_rate(schedule, stage, 0) == pytest.approx(0.2)
    assert learning_rate(schedule, stage, 9) == pytest.approx(2.0)
    assert learning_rate(schedule, stage, 10) == pytest.approx(2.0)
    assert learning_rate(schedule, stage, 60) == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert learning_rate(schedule, stage, 110) == pytest.approx(0.2)
    clock = StageConfig(seconds=10.0, learning_rate=2.0)
    assert learning_rate(ScheduleConfig(), clock, 7, 5.0) == pytest.approx(1.0)
    assert learning_rate(ScheduleConfig(), clock, 7, 50.0) == pytest.approx(0.0)
    assert learning_rate(ScheduleConfig(kind="constant"), stage, 50) == 2.0
    assert learning_rate(ScheduleConfig(kind="plateau"), stage, 50, plateau_scale=0.25) == 0.5


def test_plateau_halves_after_patience(tmp_path):
    trainer = make(  # noqa: F821
        tmp_path, [{"steps": 1}], schedule={"kind": "plateau", "patience": 2, "factor": 0.5}
    )
    scales = []
    for value in (1.0, 0.5, 0.6, 0.6, 0.6, 0.4, 0.4):
        trainer._plateau(value)
        scales.append(trainer.progress.plateau_scale)
    assert scales == [1, 1, 1, 1, 0.5, 0.5, 0.5]


def test_remat_changes_memory_not_numbers(tmp_path):
    trainer = make(tmp_path, [{"steps": 1}])  # noqa: F821
    parts = ModelParts.split(trainer.model(), training=False)
    window = trainer.train.states[:2, :5].swapaxes(0, 1)

    def gradient(remat):
        def objective(params):
            moved = ModelParts(parts.graph, params, parts.random, parts.constants)
            return window_loss(moved, trainer.loss, None, window, remat=remat)[0]

        return jax.jit(jax.value_and_grad(objective))

    plain, saved = gradient(False), gradient(True)
    for a, b in zip(jax.tree.leaves(plain(parts.params)), jax.tree.leaves(saved(parts.params)),
                    strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    memory = [f.lower(parts.params).compile().memory_analysis().temp_size_in_bytes for f in (plain, saved)]
    assert memory[1] < memory[0]


def test_window_loss_scores_all_or_last(tmp_path):
    trainer = make(tmp_path, [{"steps": 1}])  # noqa: F821
    parts = ModelParts.split(trainer.model(), training=False)
    window = jnp.asarray(trainer.train.states[:2, :4].swapaxes(0, 1))
    states, values = window[0], []
    for target in window[1:]:
        states, _ = parts(states)
        values.append(float(trainer.loss(states, target)))
    every, _ = window_loss(parts, trainer.loss, None, window)
    last, _ = window_loss(parts, trainer.loss, None, window, score="last")
    assert every == pytest.approx(np.mean(values), rel=1e-5)
    assert last == pytest.approx(values[-1], rel=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_optimizer_at_rate_one_times_the_rate_is_optax(name):
    config = OptimizerConfig(name=name, weight_decay=0.1 if name == "adamw" else 0.0, clip_norm=0.5)
    ours = make_optimizer(config)
    reference = optax.adamw(0.01, weight_decay=0.1) if name == "adamw" else optax.adam(0.01)
    theirs = optax.chain(optax.clip_by_global_norm(0.5), reference)
    a = b = jnp.array([1.0, -2.0, 3.0])
    state_a, state_b = ours.init(a), theirs.init(b)
    for step in range(5):
        gradient = jnp.array([0.3, -2.0, float(step)])
        update_a, state_a = ours.update(gradient, state_a, a)
        update_b, state_b = theirs.update(gradient, state_b, b)
        a, b = a + 0.01 * update_a, b + update_b
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_moving_average_lags_behind_and_is_used_for_evaluation(tmp_path):
    trainer = make(tmp_path, [{"steps": 9}], optimizer={"ema_decay": 0.9})  # noqa: F821
    start = bits(trainer.state.params)
    trainer.run()
    assert bits(trainer.state.average) not in (start, bits(trainer.state.params))
    x = trainer.train.states[:1, 0]
    assert not np.array_equal(trainer.model()(x), trainer.model(average=False)(x))


def test_sampler_visits_every_window_once_an_epoch():
    states = np.arange(3 * 5, dtype=np.float32).reshape(3, 5, 1, 1, 1)
    sampler = WindowSampler(ArrayTrajectories(states), 2, 3, (0, 1))
    assert sampler.batches_per_epoch == 3
    epoch = sampler.batches(0, 3)
    assert epoch.shape == (3, 3, 3, 1, 1, 1)
    starts = epoch[:, 0].ravel()
    assert sorted(starts) == [0, 1, 2, 5, 6, 7, 10, 11, 12]
    np.testing.assert_array_equal(epoch[:, 2], epoch[:, 0] + 2)  # never across trajectories
    assert sorted(sampler.batches(3, 3)[:, 0].ravel()) == sorted(starts)
    assert not np.array_equal(sampler.batches(3, 3), epoch)
    np.testing.assert_array_equal(sampler.batch(1), epoch[1])  # any batch, in any order


def test_no_large_constant_in_the_training_step(tmp_path):
    trainer = make(tmp_path, [{"steps": 1}])  # noqa: F821
    parts = ModelParts.split(trainer.model(), training=True)
    window = trainer.train.states[:2, :3].swapaxes(0, 1)
    loss = SphereLoss.create("h1", 8, 16, "legendre-gauss")
    jaxpr = jax.make_jaxpr(lambda p, f, w: window_loss(p, f, None, w)[0])(parts, loss, window)
    assert sum(np.size(c) for c in jaxpr.consts) < 1000


def test_progress_is_silent_when_not_a_terminal(tmp_path, capfd):
    make(tmp_path, [{"steps": 3}]).run()  # noqa: F821
    captured = capfd.readouterr()
    assert re.sub(r"\s", "", captured.err + captured.out) == ""


def test_float64_training_stays_float64(tmp_path):
    with jax.enable_x64(True):
        data = waves().astype(np.float64)  # noqa: F821
        small = make(tmp_path / "a", [{"steps": 3}], model={"param_dtype": "float64"})  # noqa: F821
        trainer = Trainer(
            small.model(), small.config, ArrayTrajectories(data), folder=tmp_path / "b",
            grid="legendre-gauss",
            stabiliser=Stabiliser.create(8, 16, "legendre-gauss", CHANNELS, damping=0.1),  # noqa: F821
        )  # fmt: skip
        trainer.run()
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(trainer.state.params))


def test_two_devices_train_like_one(tmp_path):
    """The same noise, batches and steps; only the order of sums differs."""
    code = f"""{CASE}
import jax, json
from sfno_jax.parallel import make_mesh
stages = [{{"steps": 6, "noise": 0.1, "n_future": 2}}]
losses = []
for mesh in (None, make_mesh(2)):
    folder = {str(tmp_path)!r} + f"/{{mesh is None}}"
    trainer = make(folder, stages, mesh=mesh)
    trainer.run()
    lines = [json.loads(line) for line in open(folder + "/log.jsonl")]
    losses.append([line["loss"] for line in lines] + [trainer.validate()])
try:
    make({str(tmp_path)!r} + "/x", stages, mesh=make_mesh(2), trainer={{"batch_size": 3}})
except ValueError as error:
    message = str(error)
print(json.dumps([len(jax.devices()), losses, message]))
"""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    devices, (one, two), message = json.loads(result.stdout.splitlines()[-1])
    assert devices == 2
    np.testing.assert_allclose(one, two, rtol=1e-4)
    assert "batch_size = 3 cannot be split over 2 devices" in message


def test_compiled_ahead_it_trains_the_same_and_compiles_no_more(tmp_path, monkeypatch):
    plain = make(tmp_path / "plain", [{"steps": 3}])  # noqa: F821
    plain.run()
    ahead = make(tmp_path / "ahead", [{"steps": 3}])  # noqa: F821
    ahead.compile()
    monkeypatch.setattr("sfno_jax.training.loop.train_steps", None)  # what would be lowered
    ahead.run()
    assert bits(ahead.state.params) == bits(plain.state.params)
    ahead.compile()  # at the end there is nothing to compile
