"""Wrapping any model: what is matched, what is left and why, and errors that change nothing."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear, LowRankLayer, low_rank_layers, summary, wrap

SMALL = InRankConfig(rank=2, buffer=2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(40, 16)
        self.conv = nn.Conv2d(3, 16, 3)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(16, 32), "down": nn.Linear(32, 16)}) for _ in range(2)
        )
        self.norm = nn.LayerNorm(16)
        self.line = nn.Conv1d(4, 4, 3)
        self.back = nn.ConvTranspose2d(4, 4, 3)
        self.attention = nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.tok.weight


def _gpt2(layers: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_embd=32, n_head=2, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def _skipped(model: nn.Module) -> dict[str, str]:
    return {layer.name: layer.reason for layer in summary(model).skipped}


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("blocks.0.up", ["blocks.0.up"]),
        ("up", ["blocks.0.up", "blocks.1.up"]),
        ("1.up", ["blocks.1.up"]),
        (["up", "conv"], ["conv", "blocks.0.up", "blocks.1.up"]),
        (r"blocks\.\d\.(up|down)", ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"]),
        (re.compile("own"), ["blocks.0.down", "blocks.1.down"]),
        (nn.Conv2d, ["conv"]),
        ((nn.Conv2d, "down"), ["conv", "blocks.0.down", "blocks.1.down"]),
        ("all-linear", ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"]),
        (None, ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"]),
    ],
)
def test_matching(include: Any, expected: list[str]) -> None:
    model = wrap(Net(), include, config=SMALL)
    assert list(low_rank_layers(model)) == expected
    assert [layer.name for layer in summary(model).wrapped] == expected
    assert all(layer.name == name for name, layer in low_rank_layers(model).items())


def test_skipped_layers_say_why() -> None:
    model = wrap(Net(), re.compile("."), exclude=["1.up", re.compile("0.down")], config=SMALL)
    reasons = _skipped(model)
    assert "tok.weight and head.weight are one parameter" in reasons["tok"]
    assert "tied" in reasons["head"]
    assert reasons["blocks.1.up"] == "excluded by '1.up'"
    assert "excluded by" in reasons["blocks.0.down"]
    assert "1-D weight of a LayerNorm" in reasons["norm"]
    assert "3-D weight of a Conv1d" in reasons["line"]
    assert "4-D weight of a ConvTranspose2d" in reasons["back"]
    assert "nn.MultiheadAttention computes with its weight" in reasons["attention.out_proj"]
    assert list(low_rank_layers(model)) == ["conv", "blocks.0.up", "blocks.1.down"]
    text = str(summary(model))
    assert "skipped norm (LayerNorm): the 1-D weight" in text
    assert "blocks.0.up    Linear  32 x 16" in text
    # the attention of torch still works
    model.attention(*[torch.randn(3, 2, 16)] * 3)[0].sum().backward()


def test_break_even() -> None:
    model = nn.ModuleDict({"square": nn.Linear(16, 16), "wide": nn.Linear(16, 400)})
    wrapped = wrap(copy.deepcopy(model), "all-linear", config=InRankConfig(rank=4, buffer=6))
    assert _skipped(wrapped) == {"square": "10 directions cost more than the dense 16 x 16 weight (break-even 8)"}
    by_name = wrap(copy.deepcopy(model), "square", config=InRankConfig(rank=4, buffer=6))
    assert summary(by_name).wrapped[0].note == "costs more than a dense weight"
    stays = wrap(copy.deepcopy(model), "square", config=InRankConfig(rank=2, buffer=2))
    assert summary(stays).wrapped[0].note == ""
    grows = wrap(copy.deepcopy(model), "square", config=InRankConfig(rank=2, buffer=2, max_rank=10))
    assert summary(grows).wrapped[0].note == "may grow to cost more than a dense weight"
    layer = summary(by_name).wrapped[0]
    assert (layer.break_even, layer.dense_parameters, layer.parameters) == (8.0, 256, 320)
    # W_0 kept costs more than dense anyway: rank there is not about cost
    full = wrap(copy.deepcopy(model), "all-linear", mode="full", config=InRankConfig(rank=4, buffer=6))
    assert list(low_rank_layers(full)) == ["square", "wide"]
    too_small = wrap(nn.Sequential(nn.Linear(8, 8), nn.Linear(64, 64)), config=InRankConfig(rank=2, buffer=10))
    assert "rank 2 + buffer 10 exceeds 8" in _skipped(too_small)["0"]


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({}, 8),  # the buffer gives way
        ({"max_rank": 10}, 12),  # asked for by the largest rank
        ({"rank": 7, "buffer": 3}, 10),  # by the initial ranks
        ({"mode": "full"}, 10),  # W_0 + U V costs more than dense at any rank
        ({"storage": "reserve"}, 8),
    ],
)
def test_growth_ends_at_the_break_even_unless_more_is_asked_for(settings: dict[str, Any], largest: int) -> None:
    layer = wrap(nn.Linear(16, 16), "", config=InRankConfig(**{"rank": 2, "buffer": 2, **settings}))
    assert isinstance(layer, LowRankLayer)
    for rank in range(2, layer.max_rank + 1):
        layer.resize(max(rank, layer.rank))
    assert (layer.rank, layer.active) == (layer.max_rank, largest)


def test_gpt2() -> None:
    # peft's Conv1D thread: the layers of Hugging Face's GPT-2 are no nn.Linear
    model = _gpt2()
    wrap(model, ["c_fc", "mlp.c_proj"], config=SMALL)
    assert len(low_rank_layers(model)) == 4
    assert all(layer.kind == "Conv1D" for layer in summary(model).wrapped)
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    every = wrap(_gpt2(), config=SMALL)
    assert len(low_rank_layers(every)) == 2 * 4
    assert "tied" in _skipped(every)["lm_head"]
    # the output starts where the dense model's does if W_0 is kept
    dense, kept = _gpt2().eval(), wrap(_gpt2(), mode="full", config=SMALL).eval()
    ids = torch.arange(8)[None]
    torch.testing.assert_close(kept(ids).logits, dense(ids).logits)


def test_an_untied_output_head_is_left_unless_named() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.lm_head = nn.Linear(32, 32), nn.Linear(32, 64)

        def get_output_embeddings(self) -> nn.Module:
            return self.lm_head

    assert _skipped(wrap(Model(), config=SMALL)) == {"lm_head": "output head; give its name to include it"}
    assert list(low_rank_layers(wrap(Model(), "lm_head", config=SMALL))) == ["lm_head"]


def test_mode_types_overrides() -> None:
    model = wrap(Net(), re.compile("."), types=[nn.Linear], mode="full", config=SMALL)
    assert all(isinstance(layer, InRankLinear) for layer in low_rank_layers(model).values())
    changes = {"up": {"rank": 3}, "1.up": {"rank": 1, "mode": "full"}}
    layers = low_rank_layers(wrap(Net(), config=SMALL, overrides=changes))
    assert [layer.rank for layer in layers.values()] == [3, 2, 1, 2]
    assert isinstance(layers["blocks.1.up"], InRankLinear)
    assert isinstance(layers["blocks.0.up"], InRankEfficientLinear)


def test_seeds_do_not_depend_on_order_or_company() -> None:
    torch.manual_seed(0)
    model = Net()
    both = low_rank_layers(wrap(copy.deepcopy(model), mode="full", config=SMALL))
    state = torch.random.get_rng_state()
    one = low_rank_layers(wrap(copy.deepcopy(model), "blocks.1.up", mode="full", config=SMALL))
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn from the global generator
    assert torch.equal(one["blocks.1.up"].v, both["blocks.1.up"].v)
    assert not torch.equal(both["blocks.0.up"].v, both["blocks.1.up"].v)
    other = low_rank_layers(wrap(model, "blocks.1.up", mode="full", config=InRankConfig(rank=2, buffer=2, seed=1)))
    assert not torch.equal(other["blocks.1.up"].v, one["blocks.1.up"].v)


def test_a_layer_in_two_places_stays_one() -> None:
    shared = nn.Linear(16, 16)
    model = wrap(nn.Sequential(shared, nn.ReLU(), shared), config=SMALL)
    assert model[0] is model[2]
    assert isinstance(model[0], LowRankLayer)
    assert len(low_rank_layers(model)) == 1


def test_the_model_itself_may_be_the_layer() -> None:
    layer = wrap(nn.Linear(16, 32), config=SMALL)
    assert isinstance(layer, InRankEfficientLinear)
    assert list(low_rank_layers(layer)) == [""]
    assert "(model)" in str(summary(layer))


def test_training_state_device_and_flags_are_kept() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)).double().eval()
    model[0].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    wrap(model, config=SMALL)
    assert not model[0].training
    assert model[0].u.dtype == torch.float64
    assert not model[0].bias.requires_grad
    assert summary(model).wrapped[0].note == "was frozen, its factors train"


def test_names_inside_compile_and_checkpointing() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = wrap(nn.Sequential(nn.Linear(16, 32), nn.Sequential(nn.Linear(32, 16))), config=SMALL)
    model[1] = checkpoint_wrapper(model[1])
    compiled = torch.compile(model, backend="eager")
    assert list(low_rank_layers(compiled)) == ["0", "1.0"]
    assert [layer.name for layer in summary(compiled).wrapped] == ["0", "1.0"]


def test_wrapping_again_takes_what_is_left() -> None:
    model = wrap(Net(), "up", config=SMALL)
    wrap(model, "all-linear", config=SMALL)
    assert len(low_rank_layers(model)) == 4
    with pytest.raises(ValueError, match="it is low-rank already"):
        wrap(model, "up", config=SMALL)


def _with_parameter(make: Callable[[nn.Linear], torch.Tensor | nn.Parameter]) -> nn.Module:
    linear = nn.Linear(16, 32)
    value = make(linear)
    linear.weight = value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)
    return nn.ModuleDict({"fc": linear, "other": nn.Linear(16, 32)})


def _hooked() -> nn.Module:
    model = nn.ModuleDict({"fc": nn.Linear(16, 32)})
    model["fc"].register_forward_hook(lambda *_: None)
    return model


class _Special(nn.Linear):
    pass


BAD: list[tuple[str, Callable[[], nn.Module], dict[str, Any], type[Exception], str]] = [
    (
        "nothing matches",
        Net,
        {"include": "c_fc"},
        ValueError,
        r"include 'c_fc' matches no layer; candidates: .*blocks\.\*\.up \(Linear\) x 2",
    ),
    ("one of several", Net, {"include": ["up", "dwn"]}, ValueError, "include 'dwn' matches no layer"),
    ("exclude", Net, {"exclude": "lm_head"}, ValueError, "exclude 'lm_head' matches no layer"),
    ("overrides", Net, {"overrides": {"upp": {"rank": 1}}}, ValueError, "overrides 'upp' matches no layer"),
    ("no layers", nn.ReLU, {}, ValueError, "the model has no layer that can be replaced"),
    ("empty model name", Net, {"include": "["}, ValueError, "neither the name of a module nor a regular expression"),
    ("pattern type", Net, {"include": 3}, TypeError, "int"),
    ("no pattern", Net, {"include": []}, ValueError, "include is empty"),
    (
        "config type",
        Net,
        {"config": {"rank": 2}},
        TypeError,
        r"config is a dict; expected inrank\.config\.InRankConfig",
    ),
    ("overrides type", Net, {"overrides": ["up"]}, TypeError, "overrides is a list"),
    (
        "wrapped already",
        lambda: wrap(nn.Sequential(nn.Linear(16, 16)), config=SMALL),
        {},
        ValueError,
        "wrapped already: every layer",
    ),
    (
        "not finite",
        lambda: _with_parameter(lambda m: nn.Parameter(m.weight.detach() / 0)),
        {},
        ValueError,
        "the weight of fc holds values that are not finite",
    ),
    (
        "full mode, not finite",
        lambda: _with_parameter(lambda m: nn.Parameter(m.weight.detach() / 0)),
        {"mode": "full"},
        ValueError,
        "not finite",
    ),
    (
        "one reason for many",
        lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))),
        {"config": InRankConfig(rank=5)},
        ValueError,
        r"nothing was replaced: 0 \(Linear\), 1 \(Linear\), 2 \(Linear\) and 6 more: rank 5 exceeds max_rank 4[^:]*$",
    ),
    ("pattern in list", Net, {"include": [3]}, TypeError, "given 3 of type int"),
    (
        "tied by name",
        Net,
        {"include": "head"},
        ValueError,
        "head cannot be replaced: its weight is tied: tok.weight and head.weight",
    ),
    ("named norm", Net, {"include": "norm"}, ValueError, "1-D weight of a LayerNorm"),
    ("named conv1d", Net, {"include": "line"}, ValueError, "3-D weight of a Conv1d"),
    ("override key", Net, {"overrides": {"up": {"rnk": 1}}}, ValueError, "unknown key 'rnk'"),
    ("mode", Net, {"mode": "both"}, ValueError, "mode is 'both'"),
    ("saddle", Net, {"config": InRankConfig(init="zero")}, ValueError, "saddle whose gradients are zero"),
    ("saddle by override", Net, {"overrides": {"up": {"init": "zero"}}}, ValueError, "saddle"),
    ("all excluded", Net, {"include": "up", "exclude": "up"}, ValueError, "nothing was replaced: .*excluded by"),
    ("too small", lambda: nn.Sequential(nn.Linear(4, 4)), {"config": InRankConfig.official()}, ValueError, "exceeds"),
    ("hooks", _hooked, {"include": "fc"}, ValueError, "it has hooks"),
    (
        "weight norm",
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
        {},
        ValueError,
        "no plain parameter",
    ),
    ("subclass", lambda: nn.Sequential(_Special(8, 8)), {}, ValueError, "a subclass of Linear"),
    (
        "integer",
        lambda: _with_parameter(lambda _: torch.zeros(32, 16, dtype=torch.int8)),
        {},
        TypeError,
        r"fc \(Linear\) has a torch.int8 weight",
    ),
    ("float8", lambda: _with_parameter(lambda m: m.weight.detach().to(torch.float8_e4m3fn)), {}, TypeError, "float8"),
    (
        "ZeRO-3",
        lambda: _with_parameter(lambda _: nn.Parameter(torch.empty(0))),
        {},
        ValueError,
        r"shape \(0,\): empty, as DeepSpeed ZeRO-3",
    ),
    (
        "flattened",
        lambda: _with_parameter(lambda m: nn.Parameter(m.weight.detach().flatten())),
        {},
        ValueError,
        "1-D, not 2-D, as FSDP flattens it",
    ),
    ("meta", lambda: nn.Sequential(nn.Linear(8, 8, device="meta")), {}, ValueError, "meta device"),
]


@pytest.mark.parametrize(
    ("build", "arguments", "error", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_bad_input(build: Any, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    model = build()
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(error, match=message):
        wrap(model, **{"config": SMALL, **arguments})
    assert {name: type(module) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("given", ["model", None])
def test_what_is_no_model_is_said(given: Any) -> None:
    with pytest.raises(TypeError, match=r"model is a \w+; expected torch"):
        wrap(given)
    with pytest.raises(TypeError, match=r"model is a \w+; expected torch"):
        low_rank_layers(given)


def test_packed_quantised_layers_are_refused() -> None:
    class Packed(nn.Module):
        def weight(self) -> torch.Tensor:
            return torch.zeros(3, 3)

    with pytest.raises(TypeError, match="packed quantised weight"):
        wrap(nn.ModuleDict({"fc": Packed(), "other": nn.Linear(16, 16)}), "fc", config=SMALL)


def test_flattened_fsdp_model_is_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._flat_param = nn.Parameter(torch.zeros(10))
            self.inner = nn.Linear(16, 16)

    with pytest.raises(ValueError, match="flattened by FSDP"):
        wrap(nn.Sequential(FullyShardedDataParallel()), config=SMALL)


@pytest.fixture
def _gloo(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_gloo")
def test_distributed_models_are_wrapped_before() -> None:
    from torch.distributed.fsdp import fully_shard

    parallel = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16)))
    with pytest.raises(ValueError, match="inside DistributedDataParallel"):
        wrap(parallel, config=SMALL)
    wrapped = nn.parallel.DistributedDataParallel(wrap(nn.Sequential(nn.Linear(16, 16)), config=SMALL))
    assert list(low_rank_layers(wrapped)) == ["0"]
    assert len(summary(wrapped).wrapped) == 1
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    sharded = nn.Sequential(nn.Linear(16, 16))
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(ValueError, match=r"sharded \(DTensor\)"):
        wrap(sharded, config=SMALL)
