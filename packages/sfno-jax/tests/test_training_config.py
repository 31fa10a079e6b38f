"""Training configurations: presets, overrides, and errors that name the key."""

import pytest

from sfno_jax.models.config import FNOConfig, SFNOConfig
from sfno_jax.training.config import ConfigError, TrainingConfig, load_config, preset_names


def test_presets_are_valid_and_survive_a_round_trip():
    assert preset_names() == ["swe-paper", "swe-small"]
    for name in preset_names():
        config = load_config(name)
        assert TrainingConfig.from_dict(config.to_dict()) == config


def test_swe_small_is_the_curriculum_and_swe_paper_the_reference():
    small = load_config("swe-small")
    assert [stage.n_future for stage in small.stages] == [1, 4, 8, 16]
    assert isinstance(small.model.operator_config(32, 64, "legendre-gauss", 3), SFNOConfig)
    paper = load_config("swe-paper")
    assert paper.optimizer.name == "adam"
    assert paper.schedule.kind == "plateau"
    assert paper.trainer.batch_size == 4
    assert paper.stages[1].learning_rate == pytest.approx(0.1 * paper.stages[0].learning_rate)
    assert paper.stages[1].score == "last"


def test_file_and_overrides(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('seed = 7\n[model]\nkind = "fno"\nembed_dim = 8\n[[stages]]\nsteps = 10\n')
    config = load_config(
        path,
        [
            "trainer.batch_size=2",
            "stages.0.steps=5",
            "stages.0.learning_rate=1",
            "trainer.loss=l1",
            'stabiliser.conserve=["geopotential"]',
            "data.lmax=11",
        ],
    )
    assert config.seed == 7
    assert config.trainer.batch_size == 2
    assert config.trainer.loss == "l1"
    assert config.stages[0].steps == 5
    assert config.stages[0].learning_rate == 1.0
    assert config.stabiliser.conserve == ("geopotential",)
    assert config.data.lmax == 11
    network = config.model.operator_config(16, 32, "equiangular", 2)
    assert isinstance(network, FNOConfig)
    assert (network.embed_dim, network.nlat, network.in_channels) == (8, 16, 2)


BAD = {
    "unknown section": ("trainr.batch_size=2", r"unknown key trainr \(did you mean 'trainer'"),
    "unknown key": ("trainer.batchsize=2", r"trainer\.batchsize \(did you mean 'batch_size'"),
    "unknown model option": ("model.embed=2", r"model\.embed \(did you mean 'embed_dim'"),
    "from the data": ("model.nlat=32", r"model\.nlat follows from the data"),
    "model value": ("model.num_layers=0", r"num_layers"),
    "model kind": ("model.kind=sfn", r"model\.kind = 'sfn' .*did you mean 'sfno'"),
    "string for integer": ("trainer.batch_size=many", r"trainer\.batch_size must be an integer"),
    "float for integer": ("trainer.batch_size=2.5", r"trainer\.batch_size must be an integer"),
    "boolean for integer": ("seed=true", r"seed must be an integer"),
    "integer for boolean": ("trainer.remat=1", r"trainer\.remat must be true or false"),
    "string for number": ("data.mach='a'", r"data\.mach must be a number"),
    "number for string": ("trainer.loss=2", r"trainer\.loss must be a string"),
    "value for list": ("stabiliser.conserve=geopotential", r"stabiliser\.conserve must be a list"),
    "item type": ("stabiliser.conserve=[1]", r"stabiliser\.conserve\.0 must be a string"),
    "table for value": ("data=3", r"data must be a table"),
    "unknown loss": ("trainer.loss=l22", r"trainer\.loss = 'l22' .*did you mean 'l2'"),
    "stage key": ("stages.0.nfuture=2", r"stages\.0\.nfuture \(did you mean 'n_future'"),
    "stage number": ("stages.9.steps=2", r"'9' is not one of the 4 items"),
    "both budgets": ("stages.0.steps=2", r"exactly one of stages\.steps and stages\.seconds"),
    "no stage": ("stages=[]", r"at least one"),
    "negative noise": ("stages.0.noise=-1", r"stages\.noise must not be negative"),
    "not a divisor": ("data.solver_seconds=7", r"multiple of data\.solver_seconds"),
    "path without file": ("data.path=a.nc", r"data\.path belongs to"),
    "decay on adam": ("optimizer.name=adam", r"optimizer\.weight_decay has no effect"),
    "too long": ("data.steps=4", r"n_future = 16 is longer than data\.steps"),
    "plateau unvalidated": ("schedule.kind=plateau", r"needs trainer\.validate_every"),
    "conserve and zero": ('stabiliser.zero_mean=["geopotential"]', r"both name \['geopotential'\]"),
    "no equals sign": ("seed", r"section\.key=value"),
    "into a value": ("seed.x=1", r"seed holds a value"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configuration(case):
    override, message = BAD[case]
    extra = ["trainer.validate_every=0"] if case == "plateau unvalidated" else []
    with pytest.raises(ConfigError, match=message):
        load_config("swe-small", [*extra, override])


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match="not a file, and not one of the presets swe-paper"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(broken)
