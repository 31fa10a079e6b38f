import os

import pytest
import torch
from torch import nn

from inrank.allocations import measured_growth
from inrank.config import InRankConfig
from inrank.language.gpt import GPT, GPTConfig
from inrank.layers import InRankEfficientLinear, InRankLinear
from inrank.memory import PARTS, count_states, measure_memory, planned_states


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _stepper(model, optimizer, *batch):
    def step():
        optimizer.zero_grad()
        out = model(*batch)
        # the gradient of a plain sum has stride 0, and matrix products copy that inside their kernels
        (out if out.ndim == 0 else out.square().sum()).backward()
        optimizer.step()

    return step


def _mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)), (torch.randn(256, 64),)


def _gpt():
    tokens = torch.zeros(4, 32, dtype=torch.int64)
    config = GPTConfig(vocabulary=128, context=32, layers=2, heads=2, width=64)
    return GPT(config, torch.Generator().manual_seed(0)), (tokens, tokens)


def _low_rank():
    config = InRankConfig(rank=8, buffer=8)
    return nn.Sequential(InRankEfficientLinear(128, 256, config=config), nn.GELU(), InRankLinear(256, 128)), (
        torch.randn(128, 128),
    )


@pytest.mark.parametrize("make", [_mlp, _gpt, _low_rank])
@pytest.mark.parametrize("kind", ["adamw", "adamw-for-loop", "sgd"])
def test_parts_add_up_to_the_measured_peak(make, kind):
    model, batch = make()
    optimizer = {
        "adamw": lambda p: torch.optim.AdamW(p, foreach=True),
        "adamw-for-loop": lambda p: torch.optim.AdamW(p, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    }[kind](model.parameters())
    report = measure_memory(_stepper(model, optimizer, *batch), model, optimizer)
    assert tuple(report.peak) == PARTS
    assert report.counted + report.unexplained == report.measured
    assert abs(report.unexplained) < 0.02 * report.measured
    assert report.activations > 0
    assert report.peak["activations"] <= report.activations
    assert min(report.peak.values()) >= 0


def test_activations_are_what_is_saved_once_and_without_parameters_and_batch():
    first, second = nn.Linear(16, 32), nn.Linear(32, 8)
    model = nn.Sequential(first, nn.ReLU(), second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = measure_memory(_stepper(model, optimizer, torch.ones(10, 16)), model, optimizer)
    # relu's output serves relu's own backward pass and the second layer's: once; the batch was there before
    output = 10 * 8 * 4  # for the backward pass of its square
    assert report.activations == 10 * 32 * 4 + output
    model[1] = nn.GELU()  # its backward pass needs the input, the second layer its output
    assert (
        measure_memory(_stepper(model, optimizer, torch.ones(10, 16)), model, optimizer).activations
        == 20 * 32 * 4 + output
    )


def test_a_missing_part_would_be_seen():
    model, batch = _gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    report = measure_memory(_stepper(model, optimizer, *batch), model, optimizer)
    for part in ("weights", "moments", "activations"):
        assert report.measured - (report.counted - report.peak[part]) > 0.05 * report.measured


def test_states_of_layers_with_and_without_w0():
    config = InRankConfig(rank=4, buffer=4)
    kept, dropped = InRankLinear(32, 48, config=config), InRankEfficientLinear(32, 48, config=config)
    factors = 8 * (32 + 48)
    assert count_states(kept).frozen == 32 * 48 * 4
    assert count_states(dropped).frozen == factors * 4  # the initial factors, for the spectrum of D
    for layer in (kept, dropped):
        optimizer = torch.optim.AdamW(layer.parameters())
        _stepper(layer, optimizer, torch.ones(2, 32))()
        states = count_states(layer, optimizer)
        assert states.weights == states.gradients == (factors + 48) * 4
        assert states.moments == 2 * states.weights + 3 * 4  # and a counter for each parameter
        assert states.total == 4 * states.weights + 12 + states.frozen


def test_shared_weights_count_once_and_frozen_parameters_have_no_gradient():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    assert count_states(model).weights == count_states(model).gradients == 160
    model.requires_grad_(False)
    assert count_states(model) == count_states(model, torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    assert (count_states(model).weights, count_states(model).frozen, count_states(model).gradients) == (0, 160, 0)


def test_planned_states_are_those_of_the_model():
    model, batch = _mlp()
    count = sum(p.numel() for p in model.parameters())
    for name, optimizer in {
        "sgd": torch.optim.SGD(model.parameters()),
        "momentum": torch.optim.SGD(model.parameters(), momentum=0.9),
        "adamw": torch.optim.AdamW(model.parameters()),
    }.items():
        _stepper(model, optimizer, *batch)()
        counted, planned = count_states(model, optimizer), planned_states(count, optimizer=name)
        assert (counted.weights, counted.gradients) == (planned.weights, planned.gradients)
        assert counted.moments - planned.moments in (0, 16)  # Adam's counters


def test_report_is_plain_data():
    model, batch = _mlp()
    optimizer = torch.optim.SGD(model.parameters())
    values = measure_memory(_stepper(model, optimizer, *batch), model, optimizer).to_dict()
    assert values["measured"] == values["counted"] + values["unexplained"]
    assert values["states"]["total"] == sum(v for k, v in values["states"].items() if k != "total")


def test_growth_is_the_highest_moment():
    def run():
        torch.empty(1000, dtype=torch.float64)
        torch.empty(500, dtype=torch.float64)

    assert measured_growth(run) == 8000


def test_messages_of_others_on_stderr_are_passed_on(capfd):
    measured_growth(lambda: os.write(2, b"USDT: noise\nsomething else\n"))
    assert capfd.readouterr().err == "something else\n"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: measure_memory(lambda: None, nn.ReLU()), "parameters are on none; expected one device"),
        (lambda: measure_memory(lambda: None, nn.Linear(1, 1), warmup=0), "warmup is 0"),
        (
            lambda: measure_memory(
                lambda: None, nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta")), warmup=1
            ),
            "on cpu, meta; expected one device",
        ),
        (lambda: measured_growth(lambda: None, "meta"), "device is meta; memory is measured on cpu and cuda"),
        (lambda: planned_states(5, optimizer="lion"), "no optimizer 'lion'; known: sgd, momentum, adam, adamw"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(ValueError, match=said):
        call()
