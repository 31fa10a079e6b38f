"""Configurations: presets, overrides, and errors that name the key."""

import pytest

from inrank.language.presets import ConfigError, RunConfig, ScheduleConfig, load_config, preset_names


def test_presets_ship():
    assert {"tiny", "gpt2-small", "gpt2-medium", "gpt2-large"} <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_json(name):
    config = load_config(name)
    assert RunConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("size", "rate", "shape"),
    [("small", 6e-4, (12, 12, 768)), ("medium", 1.5e-4, (24, 16, 1024)), ("large", 1.5e-4, (36, 20, 1280))],
)
def test_gpt2_presets_are_the_papers_recipe(size, rate, shape):
    config = load_config(f"gpt2-{size}")
    assert config.optimizer.learning_rate == rate
    assert (config.model.layers, config.model.heads, config.model.width) == shape
    assert (config.trainer.steps, config.schedule.warmup, config.trainer.sequences) == (22500, 225, 512)
    assert (config.inrank.rank, config.inrank.buffer, config.inrank.strict) == (2, 100, True)
    # 8 GPUs of the paper
    assert config.trainer.accumulation(8) == {"small": 8, "medium": 8, "large": 16}[size]


def test_overrides():
    config = load_config(
        "tiny", ["trainer.steps=7", "method.name=inrank-full", "inrank.max_rank = 0.4", "data.tokenizer=bpe"]
    )
    assert (config.trainer.steps, config.method.name, config.inrank.max_rank) == (7, "inrank-full", 0.4)
    assert (config.inrank.mode, config.data.tokenizer) == ("full", "bpe")


@pytest.mark.parametrize("preset", preset_names())
def test_w0_kept_starts_at_zero_whatever_the_presets_factors(preset):
    config = load_config(preset, ["method.name = 'inrank-full'"])
    assert (config.inrank.mode, config.inrank.resolved_init, config.inrank.init_scale) == ("full", "zero", 1.0)
    assert not config.inrank.strict
    assert load_config(preset).inrank.resolved_init != "zero"
    # what is asked for is done, wherever it stands
    asked = load_config(preset, ["inrank.init=orthogonal", "method.name=inrank-full", "inrank.init_scale=0.5"])
    assert (asked.inrank.init, asked.inrank.init_scale) == ("orthogonal", 0.5)


def test_files(tmp_path):
    (tmp_path / "mine.toml").write_text("[model]\nwidth = 64\n")
    assert load_config(tmp_path / "mine.toml").model.width == 64
    (tmp_path / "mine.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.step=1", "unknown key trainer.step .did you mean 'steps'"),
        ("trainer.steps=1.5", "trainer.steps must be an integer, got 1.5"),
        ("trainer.steps=0", "trainer.steps must be at least 1, got 0"),
        ("trainer.batch_size=3", "trainer.sequences = 16 must be a multiple of trainer.batch_size = 3"),
        ("trainer.precision=fp16", 'needs trainer.engine = "accelerate"'),
        ("model.heads=3", "model.width must be a multiple of heads"),
        ("model.huggingface=yes", "model.huggingface must be true or false, got 'yes'"),
        ("method.name=inrank", "method.name = 'inrank' is unknown"),
        ("method.rank=0", "method.rank must be at least 1"),
        ("method.rank=true", "method.rank must be a number, got True"),
        ("inrank.threshold=2.0", "inrank.threshold is 2.0"),
        ("inrank.thresh=0.5", "inrank.unknown key 'thresh'"),
        ("inrank.mode=full", "inrank.mode follows from method.name"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate must be positive and finite, got -1.0"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate must be positive and finite, got nan"),
        ("optimizer.factor_ratio=0", "optimizer.factor_ratio must be positive and finite, got 0.0"),
        ("optimizer.factor_ratio=big", "optimizer.factor_ratio must be a number, got 'big'"),
        ("schedule.kind=step", "schedule.kind = 'step' is unknown"),
        ("data.source=text", 'does not go with data.source = "text"'),
        ("data.path=3", "data.path must be a list, got 3"),
        ("seed=-1", "seed must not be negative, got -1"),
        ("seed", "must look like table.key=value"),
        ("seed.x=1", "seed holds a value, not a table"),
        ("model=3", "model must be a table, got 3"),
    ],
)
def test_bad_keys_are_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", [override])


def test_unknown_preset():
    with pytest.raises(ConfigError, match="no configuration 'huge': not a file, and not one of the presets"):
        load_config("huge")


def test_schedules():
    linear = ScheduleConfig("linear", warmup=4, final=0.1)
    assert linear.factor(0, 0.0) == 0.25
    assert linear.factor(10, 0.5) == pytest.approx(0.55)
    assert linear.factor(10, 1.0) == pytest.approx(0.1)
    assert ScheduleConfig("cosine").factor(10, 0.5) == pytest.approx(0.5)
    assert ScheduleConfig("constant").factor(10, 1.0) == 1.0
