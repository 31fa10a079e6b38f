"""torch.compile: rank events, not steps, recompile (pytorch#135011, #128319)."""

import itertools

import pytest
import torch
from torch import nn

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear
from inrank.controller import RankController

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, kind, **changes):
        super().__init__()
        torch.manual_seed(0)
        settings = {"rank": 1, "buffer": 2, "max_rank": 12, "warmup_steps": 1, "check_every": 4, "threshold": 0.999}
        config = InRankConfig(**{**settings, **changes})
        self.first = kind(12, 20, config=config)
        self.second = kind(20, 12, config=config)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Counter:
    """A backend that runs graphs as they are and counts how often it was asked for one."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(kind, steps=13, **changes):
    """Graphs compiled and active directions after each step, in train and eval mode."""
    model = Net(kind, **changes)
    counter = Counter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    controller = RankController(compiled, optimizer)
    history = []
    for step in range(steps):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (compiled(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        controller.step()
        history.append((counter.graphs, tuple(layer.active for layer in controller.layers.values())))
    return history, controller


@pytest.mark.parametrize("kind", [InRankLinear, InRankEfficientLinear])
@pytest.mark.parametrize("storage", ["resize", "reserve"])
def test_at_most_one_recompilation_for_each_step_with_events(kind, storage):
    history, controller = run(kind, storage=storage)
    event_steps = sorted({event.step for event in controller.events if event.kind == "grow"})
    assert len(event_steps) >= 2
    assert history[0][0] == 1
    for step in range(1, len(history)):
        compiled = history[step][0] - history[step - 1][0]
        assert compiled <= (1 if step in event_steps else 0)  # the forward after the event; none in between
    assert history[-1][0] > 1  # the counter does count


@pytest.mark.parametrize("storage", ["resize", "reserve"])
def test_padded_ranks_recompile_only_when_the_padded_number_changes(storage):
    history, controller = run(InRankLinear, storage=storage, pad_to=8)
    grown = [event for event in controller.events if event.kind == "grow"]
    actives = [history[0][1], *(active for _, active in history)]
    changes = sum(a != b for a, b in itertools.pairwise(actives))
    assert len({event.step for event in grown}) > changes
    assert history[-1][0] <= 1 + changes


def test_no_recompilation_where_padding_hides_every_event():
    history, controller = run(InRankLinear, pad_to=12, storage="reserve")
    assert len(controller.events) >= 2
    assert history[-1][0] == 1


def test_a_compiled_model_learns_what_the_plain_one_does():
    _, controller = run(InRankLinear, steps=9)
    model = Net(InRankLinear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plain = RankController(model, optimizer)
    for step in range(9):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        plain.step()
    assert [(e.layer, e.new_rank) for e in plain.events] == [(e.layer, e.new_rank) for e in controller.events]
    torch.testing.assert_close(model.first.u, controller.layers["first"].u, rtol=1e-4, atol=1e-5)
