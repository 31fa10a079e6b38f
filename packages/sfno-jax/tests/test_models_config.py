"""Configurations: defaults of both variants, validation, JSON."""

import pytest

from sfno_jax.models import FNO, SFNO, FNOConfig, SFNOConfig, build_model, matched_fno_config, parameter_count


def sfno(**options):
    return SFNOConfig(**{"nlat": 33, "nlon": 64, "scale_factor": 2, "embed_dim": 4, **options})


def test_defaults_of_the_variants():
    th = SFNOConfig(nlat=721, nlon=1440)
    assert (th.scale_factor, th.embed_dim, th.num_layers, th.norm) == (3, 256, 4, "none")
    assert (th.encoder_layers, th.outer_skip, th.residual_prediction) == (0, "identity", False)
    assert th.internal_shape == (241, 480)
    assert th.modes == (240, 240)
    makani = SFNOConfig(nlat=721, nlon=1440, variant="makani")
    assert (makani.scale_factor, makani.embed_dim, makani.num_layers, makani.norm) == (8, 32, 4, "instance_norm")
    assert (makani.encoder_layers, makani.outer_skip, makani.residual_prediction) == (1, "linear", True)
    assert makani.internal_shape == (90, 180)
    assert makani.modes == (90, 90)


def test_icml_configuration_has_180_modes():
    config = SFNOConfig(
        nlat=721,
        nlon=1440,
        variant="makani",
        scale_factor=2,
        embed_dim=384,
        num_layers=8,
        hard_thresholding_fraction=0.5,
    )
    assert config.modes == (180, 180)


@pytest.mark.parametrize("config", [sfno(), sfno(max_modes=[9, 12]), FNOConfig(nlat=33, nlon=64, variant="makani")])
def test_json_round_trip(config):
    again = type(config).from_json(config.to_json())
    assert again == config
    assert hash(again) == hash(config)


BAD = [
    ({"variant": "pytorch"}, "variant='pytorch'.*torch-harmonics"),
    ({"nlon": 63}, "nlon=63 is odd"),
    ({"nlat": 1}, "nlat=1.*at least 2"),
    ({"nlat": 33.0}, "nlat=33.0"),
    ({"scale_factor": 0}, "scale_factor=0"),
    ({"scale_factor": 30}, "scale_factor=30.*modes"),
    ({"embed_dim": True}, "embed_dim=True"),
    ({"activation": "tanh"}, "activation='tanh'.*gelu"),
    ({"norm": "batch_norm"}, "norm='batch_norm'.*instance_norm_s2"),
    ({"grid": "healpix"}, "healpix"),
    ({"position_embedding": "direct"}, "position_embedding.*'direct'.*learnable lat"),
    ({"variant": "makani", "position_embedding": "spectral"}, "position_embedding.*'spectral'.*frequency"),
    ({"operator_type": "dhconv"}, "operator_type.*'dhconv'.*driscoll-healy"),
    ({"filter_type": "non-linear", "operator_type": "driscoll-healy"}, "operator_type.*l-dependant"),
    ({"separable": True, "filter_type": "non-linear"}, "separable=True"),
    ({"separable": True, "operator_type": "block-diagonal"}, "separable=True"),
    ({"spectral_layers": 2}, "spectral_layers=2 has no effect"),
    ({"complex_activation": "real"}, "complex_activation='real' has no effect"),
    ({"encoder_ratio": 2.0}, "encoder_ratio=2.0 has no effect"),
    ({"use_mlp": False, "mlp_ratio": 4.0}, "mlp_ratio=4.0 has no effect"),
    ({"drop_rate": 1.0}, r"drop_rate=1.0.*\[0, 1\)"),
    ({"drop_path_rate": -0.1}, "drop_path_rate=-0.1"),
    ({"use_mlp": False, "drop_rate": 0.1, "pos_drop_rate": 0.0}, "drop_rate=0.1 has no effect"),
    ({"hard_thresholding_fraction": 0.0}, r"hard_thresholding_fraction=0.0.*\(0, 1\]"),
    ({"hard_thresholding_fraction": 0.5, "max_modes": (4, 4)}, "not both"),
    ({"max_modes": (40, 40)}, "do not fit|beyond"),
    ({"max_modes": 4}, "max_modes=4.*pair"),
    ({"max_modes": (1, 1)}, "2 degrees"),
    ({"analysis": "exact", "scale_factor": 1, "nlat": 17}, "17 degrees.*largest is 16"),
    ({"param_dtype": "bfloat16"}, "param_dtype='bfloat16'"),
    ({"real_weights": True, "operator_type": "diagonal"}, "real_weights=True.*'diagonal'"),
    ({"spectral_bias": 1}, "spectral_bias=1.*true or false"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        sfno(**options)


def test_unknown_and_missing_options():
    with pytest.raises(ValueError, match=r"'embed_dims'.*did you mean 'embed_dim'"):
        SFNOConfig.from_dict({"nlat": 33, "nlon": 64, "embed_dims": 4})
    with pytest.raises(ValueError, match="nlon"):
        FNOConfig.from_dict({"nlat": 33})
    with pytest.raises(ValueError, match="'grid'"):
        FNOConfig.from_dict({"nlat": 33, "nlon": 64, "grid": "equiangular"})
    with pytest.raises(ValueError, match="JSON object"):
        SFNOConfig.from_json("[1]")


def test_fno_options():
    assert FNOConfig(nlat=33, nlon=64, scale_factor=1).modes == (32, 32)
    assert FNOConfig(nlat=33, nlon=64, scale_factor=1, variant="makani").modes == (33, 33)
    with pytest.raises(ValueError, match=r"operator_type.*driscoll-healy"):
        FNOConfig(nlat=33, nlon=64, operator_type="driscoll-healy")
    with pytest.raises(ValueError, match="norm='instance_norm_s2'"):
        FNOConfig(nlat=33, nlon=64, norm="instance_norm_s2")
    with pytest.raises(ValueError, match="do not fit"):
        FNOConfig(nlat=33, nlon=64, scale_factor=2, max_modes=(18, 4))


def test_matched_fno_has_nearly_as_many_parameters():
    config = sfno(nlat=16, nlon=32, embed_dim=16, num_layers=2)
    matched = matched_fno_config(config, norm="instance_norm")
    assert matched.norm == "instance_norm"
    assert matched.embed_dim < config.embed_dim
    counts = []
    for width in (-1, 0, 1):
        options = {**matched.to_dict(), "embed_dim": matched.embed_dim + width}
        counts.append(abstract_count(FNOConfig.from_dict(options)))
    target = abstract_count(config)
    assert abs(counts[1] - target) == min(abs(c - target) for c in counts)


def abstract_count(config):
    from flax import nnx

    return parameter_count(nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0))))


def test_models_take_their_own_configuration():
    from flax import nnx

    with pytest.raises(TypeError, match="FNOConfig"):
        SFNO(FNOConfig(nlat=8, nlon=16), rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="SFNOConfig"):
        FNO(sfno(), rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="dict"):
        build_model({}, nnx.Rngs(0))
