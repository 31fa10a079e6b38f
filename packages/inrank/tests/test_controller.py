"""What a controller's check does, what is refused at once, and what logs, reports and state hold."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear
from inrank.controller import RankController, low_rank_layers
from inrank.events import EventLog
from inrank.flops import break_even_rank
from inrank.rank_decision import LayerState, Verdict, next_rank

torch.set_num_threads(1)


def config_of(**changes):
    settings = {"rank": 1, "buffer": 2, "max_rank": 10, "warmup_steps": 2, "check_every": 2, "threshold": 0.999}
    return InRankConfig(**{**settings, **changes})


class Net(nn.Module):
    def __init__(self, kind=InRankLinear, **changes):
        super().__init__()
        torch.manual_seed(0)
        self.first = kind(10, 14, config=config_of(**changes))
        self.second = kind(14, 10, config=config_of(**changes))

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def train(model, optimizer, controller, steps=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 10, generator=generator)
        (model(x) - x.flip(1).cumsum(1)).square().mean().backward()
        optimizer.step()
        controller.step()
    return controller.events


def made(kind=InRankLinear, optimizer=torch.optim.AdamW, **changes):
    model = Net(kind, **changes)
    return model, optimizer(model.parameters(), lr=1e-2)


# -- what a check does -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [InRankLinear, InRankEfficientLinear])
@pytest.mark.parametrize("storage", ["resize", "reserve"])
def test_growth_leaves_the_function_and_the_optimizers_view_as_they_are(kind, storage):
    model, optimizer = made(kind, storage=storage)
    controller = RankController(model, optimizer)
    parameters = [id(p) for group in optimizer.param_groups for p in group["params"]]
    train(model, optimizer, controller, 3)
    x = torch.randn(50, 10)
    before = model(x)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    events = controller.check()
    grown = [event for event in events if event.kind == "grow"]
    assert grown
    after = model(x)
    if kind is InRankLinear:
        assert torch.equal(before, after) or (before - after).abs().max() / before.abs().max() < 1e-6
    assert (before - after).abs().max() / before.abs().max() < 1e-6
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == parameters
    for event in grown:
        assert event.old_rank < event.new_rank <= event.old_rank + 2
        assert event.active == controller.layers[event.layer].active
        assert 0 < event.ratio <= 1
        assert event.null_rank == 1  # D starts at zero: without training the rank stays where it is
    train(model, optimizer, controller, 10)
    assert all(layer.rank <= 10 for layer in controller.layers.values())


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, amsgrad=True),
        lambda p: torch.optim.Adagrad(p, lr=1e-2),
    ],
)
def test_schedulers_clipping_and_hooks_go_on_through_events(optimizer):
    model = Net()
    made = optimizer(model.parameters())
    controller = RankController(model, made)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(made, 0.02, total_steps=12, cycle_momentum=False)
    seen = []
    model.first.u.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    kept = []
    for _ in range(12):
        made.zero_grad()
        x = torch.randn(16, 10)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        controller.step()
        scheduler.step()
        kept.append(loss)
    assert len(set(seen)) > 1
    assert kept[-1].item() < kept[0].item() * 1.1


def test_two_optimizers_can_share_a_layer():
    model = Net()
    muon = torch.optim.Muon([model.first.u, model.first.v, model.second.u, model.second.v], lr=1e-2)
    adam = torch.optim.AdamW([model.first.bias, model.second.bias], lr=1e-2)
    controller = RankController(model, [adam, muon])
    for _ in range(6):
        x = torch.randn(16, 10)
        (model(x) - x.flip(1)).square().mean().backward()
        adam.step()
        muon.step()
        controller.step()
    assert controller.steps == 6
    assert any(event.kind == "grow" for event in controller.events)
    assert muon.state[model.first.u]["momentum_buffer"].shape == model.first.u.shape


def test_shrinking_waits_for_agreement_and_keeps_the_function():
    layer = InRankLinear(10, 12, config=config_of(rank=4, shrink=True, threshold=0.9)).double()
    with torch.no_grad():
        layer.u.zero_()
        layer.u[:, :2] = torch.randn(12, 2, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters())
    controller = RankController(layer, optimizer)
    x = torch.randn(5, 10, dtype=torch.float64)
    before = layer(x)
    assert controller.check() == []
    assert controller.check() == []
    events = controller.check()
    assert [(event.kind, event.old_rank) for event in events] == [("shrink", 4)]
    assert layer.rank == events[0].new_rank <= 2
    torch.testing.assert_close(layer(x), before, rtol=1e-12, atol=1e-12)
    assert layer.u.shape[1] == layer.rank + 2


def test_one_dissent_starts_the_wait_again():
    layer = InRankLinear(10, 12, config=config_of(rank=4, shrink=True))
    state = LayerState()
    asked = [2, 3, 4, 2, 1, 3]
    ranks = [next_rank(layer, layer.config, state, Verdict(wanted, max(4, wanted), 0.5)) for wanted in asked]
    assert ranks == [4, 4, 4, 4, 4, 3]


def test_a_largest_rank_is_said_once_and_does_not_end_training():
    model, optimizer = made(max_rank=2, threshold=1.0 - 1e-9)
    controller = RankController(model, optimizer)
    with pytest.warns(UserWarning, match="the largest rank is reached and the criterion asks for more") as caught:
        train(model, optimizer, controller, 20)
    assert len(caught) <= 2
    saturated = [event for event in controller.events if event.kind == "saturated"]
    assert len(saturated) == 2
    assert all(event.new_rank == 2 < event.wanted for event in saturated)


def test_a_spectrum_of_zeros_grows_nothing_and_is_reported_when_it_lasts():
    """Spec 4.4: g is NaN for a dead layer, and the official rule grows it to the cap."""
    model, optimizer = made()
    controller = RankController(model, optimizer)
    for _ in range(2):
        assert controller.check() == []
    with pytest.warns(UserWarning, match="no update yet in first, second: zero spectrum at 3 checks"):
        events = controller.check()
    assert [event.kind for event in events] == ["dead", "dead"]
    assert [event.ratio for event in events] == [None, None]
    assert {layer.rank for layer in controller.layers.values()} == {1}
    assert controller.check() == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_name_layer_and_step(bad):
    model, optimizer = made()
    controller = RankController(model, optimizer)
    train(model, optimizer, controller, 3)
    with torch.no_grad():
        model.second.v[0, 0] = bad
    optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(FloatingPointError, match=r"step 4: layer second: factor V holds values that are not finite"):
        controller.step()


def test_fixed_ranks_are_left_alone_and_reported():
    model, optimizer = made(buffer=0, max_rank=1)
    controller = RankController(model, optimizer)
    assert train(model, optimizer, controller, 6) == []
    assert controller.report().checks == 0
    model, optimizer = made()
    model.first.growing = False
    controller = RankController(model, optimizer)
    train(model, optimizer, controller, 6)
    assert {event.layer for event in controller.events} == {"second"}


def test_rank_zero_grows_from_its_buffer():
    model, optimizer = made(rank=0)
    controller = RankController(model, optimizer)
    train(model, optimizer, controller, 5)
    assert min(layer.rank for layer in controller.layers.values()) > 0


def test_padded_directions_grow_in_steps():
    model, optimizer = made(pad_to=4)
    controller = RankController(model, optimizer)
    train(model, optimizer, controller, 12)
    assert all(layer.active in (4, 8, 10) for layer in controller.layers.values())


def test_a_configuration_of_its_own_overrides_the_layers():
    model, optimizer = made()
    controller = RankController(model, optimizer, config_of(check_every=1, warmup_steps=0, max_rank=3, threshold=0.5))
    train(model, optimizer, controller, 3)
    assert controller.report().checks == 6
    assert all(layer.rank <= 3 for layer in controller.layers.values())


# -- refused at construction --------------------------------------------------------------------------------------


def ddp_like(model):
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


class ZeroRedundancyOptimizer(torch.optim.SGD):
    pass


def flattened(model):
    model.first.u.data = model.first.u.data.flatten()
    return model


def emptied(model):
    model.first.u.data = torch.empty(0, 3)
    return model


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: (nn.Linear(2, 2), None), ValueError, "no low-rank layer; call inrank.wrap"),
        (lambda: (Net(), torch.optim.SGD(Net().parameters(), lr=1)), ValueError, "first: its factor u is not among"),
        (lambda: (Net(buffer=0), None), ValueError, "layer first: buffer is 0"),
        (lambda: (m := Net(), torch.optim.LBFGS(m.parameters())), TypeError, "LBFGS keeps one flat vector"),
        (lambda: (m := Net(), ZeroRedundancyOptimizer(m.parameters(), lr=1)), TypeError, "use FSDP2 instead"),
        (lambda: (Net(), ["adam"]), TypeError, "the optimizer is a str"),
        (lambda: (ddp_like(Net()), None), ValueError, r"DistributedDataParallel keeps .*storage=.reserve."),
        (lambda: (nn.DataParallel(Net()), None), ValueError, "DataParallel keeps"),
        (lambda: (flattened(Net()), None), ValueError, "flattened to shape .* FSDP1"),
        (lambda: (emptied(Net()), None), ValueError, "is empty .* ZeRO-3"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make, error, says):
    with pytest.raises(error, match=says):
        RankController(*make())


def test_a_parameter_that_was_replaced_is_noticed():
    model, optimizer = made()
    controller = RankController(model, optimizer)
    model.second.v = nn.Parameter(model.second.v.detach().clone())
    with pytest.raises(RuntimeError, match="layer second: its factor v is not among the optimizer's parameters"):
        controller.check()


def test_unknown_optimizer_state_stops_before_the_layer_changes():
    model, optimizer = made(optimizer=torch.optim.SGD)
    controller = RankController(model, optimizer, state_kinds=None)
    train(model, optimizer, controller, 3)
    optimizer.state[model.first.u]["mine"] = torch.zeros(3)
    with pytest.raises(TypeError, match=r"layer .*: SGD stores 'mine' for u"):
        controller.check(["first"])
    assert model.first.u.shape == (14, 3)


# -- logs, reports, state -----------------------------------------------------------------------------------------


def test_layers_are_named_alike_whatever_is_around_the_model():
    names = list(low_rank_layers(Net()))
    assert names == ["first", "second"]
    assert list(low_rank_layers(ddp_like(Net()))) == names
    assert list(low_rank_layers(torch.compile(Net(), backend="eager"))) == names


def test_the_report_is_a_table_with_a_null_column(tmp_path):
    model, optimizer = made(InRankEfficientLinear, spectrum="product")
    controller = RankController(model, optimizer, log=tmp_path / "log.jsonl")
    train(model, optimizer, controller, 8)
    report = controller.report()
    assert report.steps == 8
    assert [row.shape for row in report.layers] == [(14, 10), (10, 14)]
    assert all(row.null_rank >= 1 for row in report.layers)
    assert report.layers[0].break_even == int(break_even_rank(14, 10)) == 5
    text = str(report)
    assert text.splitlines()[0].split() == (
        [
            "layer",
            "m",
            "x",
            "n",
            "rank",
            "of",
            "min(m,n)",
            "active",
            "max",
            "break-even",
            "null",
            "model",
            "checks",
            "ratio",
        ]
    )
    assert "(exceeded)" in text
    assert "after 8 steps: mean rank" in text
    assert json.dumps(report.to_dict())
    assert EventLog(tmp_path / "log.jsonl").read() == controller.events


def test_without_null_ranks_there_is_none():
    model, optimizer = made()
    controller = RankController(model, optimizer, null_ranks=False)
    train(model, optimizer, controller, 8)
    assert {event.null_rank for event in controller.events} == {None}
    assert "-" in str(controller.report())


def test_state_goes_through_json_and_the_log_goes_back_with_it(tmp_path):
    model, optimizer = made()
    controller = RankController(model, optimizer, log=tmp_path / "log.jsonl")
    train(model, optimizer, controller, 6)
    state = json.loads(json.dumps(controller.state_dict()))
    events = list(controller.events)
    twin, twin_optimizer = copy.deepcopy(model), None
    train(model, optimizer, controller, 6, seed=2)
    twin_optimizer = torch.optim.AdamW(twin.parameters())
    other = RankController(twin, twin_optimizer, log=tmp_path / "log.jsonl")
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.steps == 6
    assert EventLog(tmp_path / "log.jsonl").read() == events == other.events
    with pytest.raises(ValueError, match="first: expected rank"):
        RankController(Net(), None).load_state_dict(state)
    with pytest.raises(ValueError, match="of 1 optimizers with corrected steps, the controller has 0"):
        RankController(twin, None).load_state_dict(state)


def test_the_same_seed_gives_the_same_run():
    runs = [made(), made()]
    events = [train(*run, RankController(*run)) for run in runs]
    assert events[0] == events[1]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][0].parameters(), runs[1][0].parameters(), strict=True))


def test_a_wrong_configuration_and_a_state_that_lacks_a_part_are_named():
    model, optimizer = made()
    controller = RankController(model, optimizer)
    with pytest.raises(TypeError, match="config is a dict; an InRankConfig"):
        RankController(model, optimizer, {"rank": 2})
    state = controller.state_dict()
    del state["steps"], state["young"]
    with pytest.raises(ValueError, match="lacks steps, young"):
        controller.load_state_dict(state)
