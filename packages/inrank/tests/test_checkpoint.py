import copy
import json
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from inrank import InRankConfig, InRankEfficientLinear, InRankLinear
from inrank.checkpoint import latest, load, restore_ranks, save
from inrank.controller import RankController

torch.set_num_threads(1)


class Net(nn.Module):
    """Two low-rank layers, dropout (which draws from the generator), a tied pair and a buffer."""

    def __init__(self, kind=InRankLinear, storage="resize", rank=1, **changes):
        super().__init__()
        torch.manual_seed(7)
        settings = {"buffer": 2, "max_rank": 8, "warmup_steps": 2, "check_every": 2, "threshold": 0.99, **changes}
        config = InRankConfig(rank=rank, storage=storage, **settings)
        self.first = kind(12, 16, config=config)
        self.first.name = "first"
        self.second = kind(16, 12, config=config)
        self.second.name = "second"
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(12, 12, bias=False)
        self.tail = nn.Linear(12, 12, bias=False)
        self.tail.weight = self.head.weight

    def forward(self, x):
        x = nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.1, self.training)
        return self.tail(self.head(self.second(x)))


def run_of(kind=InRankLinear, optimizer="adamw", storage="resize", **changes):
    model = Net(kind, storage, **changes)
    if optimizer == "adamw":
        made = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    elif optimizer == "fused":
        made = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True, amsgrad=True)
    else:
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    controller = RankController(model, made)
    scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + 0.1 * step))
    return model, made, controller, scheduler


def train(run, steps, rows=24):
    model, optimizer, controller, scheduler = run
    losses = []
    for _ in range(steps):
        x = torch.randn(rows, 12)
        scale = float(np.random.rand()) + random.random()  # noqa: NPY002 - the global generators are what is tested
        optimizer.zero_grad()
        loss = (model(x) - scale * x.flip(1)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        controller.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def everything(run):
    model, optimizer, controller, scheduler = run
    return [
        {k: v.clone() for k, v in model.state_dict().items()},
        copy.deepcopy(optimizer.state_dict()),
        controller.state_dict(),
        scheduler.state_dict(),
    ]


def same(a, b):
    if torch.is_tensor(a):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.filterwarnings("ignore:step .* the largest rank is reached")
@pytest.mark.parametrize("at", [0, 3, 4, 5, 9])
@pytest.mark.parametrize(
    ("kind", "optimizer", "storage", "changes"),
    [
        (InRankLinear, "adamw", "resize", {}),
        (InRankEfficientLinear, "fused", "reserve", {}),
        (InRankEfficientLinear, "sgd", "resize", {"shrink": True, "rank": 4, "threshold": 0.3, "spectrum": "product"}),
    ],
)
def test_a_run_resumes_bit_for_bit_through_rank_events(tmp_path, kind, optimizer, storage, changes, at):
    straight = run_of(kind, optimizer, storage, **changes)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    train(straight, at)
    save(tmp_path / "c", *straight, extra={"epoch": at, "place": (1, [2.5, None]), "mask": torch.arange(3)})
    later = train(straight, 14 - at)
    kinds = {event.kind for event in straight[2].events}
    assert kinds & ({"shrink"} if changes else {"grow"})

    torch.manual_seed(99)
    resumed = run_of(kind, optimizer, storage, **changes)
    train(resumed, 1)  # whatever was drawn and learned before does not count
    extra = load(tmp_path / "c", *run_of(kind, optimizer, storage, **changes))
    assert extra["epoch"] == at
    assert extra["place"] == (1, [2.5, None])
    assert torch.equal(extra["mask"], torch.arange(3))
    resumed = run_of(kind, optimizer, storage, **changes)
    load(tmp_path / "c", *resumed)
    assert train(resumed, 14 - at) == later
    assert same(everything(resumed), everything(straight))


def test_the_test_would_notice_a_lost_age(tmp_path):
    """Young directions' age is part of the state: without it the run goes another way."""
    straight = run_of(threshold=0.999)
    torch.manual_seed(1)
    train(straight, 5)
    assert straight[2].state_dict()["young"][0]
    save(tmp_path / "c", *straight)
    index = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    index["controller"]["young"] = [[]]
    (tmp_path / "c" / "checkpoint.json").write_text(json.dumps(index))
    resumed = run_of(threshold=0.999)
    load(tmp_path / "c", *resumed)
    assert train(resumed, 3) != train(straight, 3)


def test_the_index_holds_every_layers_rank_and_tensors_are_plain(tmp_path):
    """peft#1327, safetensors#469: final ranks are in the JSON, grown layers save at once."""
    run = run_of()
    torch.manual_seed(1)
    train(run, 8)
    save(tmp_path / "c", *run)
    index = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    assert {name: entry["ranks"]["rank"] for name, entry in index["layers"].items()} == {
        name: layer.rank for name, layer in run[2].layers.items()
    }
    assert index["layers"]["first"]["ranks"]["rank"] > 1
    assert InRankConfig.from_dict(index["layers"]["first"]["config"]) == run[0].first.config
    assert index["aliases"] == {"tail.weight": "head.weight"}
    saved = load_file(tmp_path / "c" / "model.safetensors")
    assert torch.equal(saved["first.u"], run[0].first.u)
    save_file(run[0].first.state_dict(), tmp_path / "direct.safetensors")
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "checkpoint.json",
        "model.safetensors",
        "rng-0.safetensors",
        "state.safetensors",
    ]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_model_alone_can_be_read_and_given_the_ranks_first(tmp_path):
    run = run_of()
    torch.manual_seed(1)
    train(run, 8)
    save(tmp_path / "c", run[0])
    fresh = Net()
    restore_ranks(tmp_path / "c", fresh)
    assert fresh.first.u.shape == run[0].first.u.shape
    state = torch.get_rng_state()
    load(tmp_path / "c", fresh, generators=False)
    assert torch.equal(torch.get_rng_state(), state)
    x = torch.randn(3, 12)
    assert torch.equal(fresh.eval()(x), run[0].eval()(x))
    with pytest.raises(ValueError, match="was saved without a controller"):
        load(tmp_path / "c", *run_of()[:1], None, run_of()[2])


def test_other_ranks_are_listed_when_they_must_not_be_adapted(tmp_path):
    """peft#1746: a mismatch is never silent."""
    run = run_of()
    torch.manual_seed(1)
    train(run, 8)
    save(tmp_path / "c", *run)
    first, second = run[0].first.rank, run[0].second.rank
    with pytest.raises(ValueError, match="not those that were saved") as caught:
        load(tmp_path / "c", Net(), adapt_ranks=False)
    assert f"first: expected rank {first} ({first + 2} active" in str(caught.value)
    assert f"second: expected rank {second}" in str(caught.value)
    assert "found rank" not in str(caught.value).replace("found 1", "")
    with pytest.raises(ValueError, match=r"first: expected InRankLinear 16 x 12 .*, found InRankEffi"):
        load(tmp_path / "c", Net(InRankEfficientLinear))
    with pytest.raises(ValueError, match="no such layer"):
        load(tmp_path / "c", nn.Sequential(run[0].first))


def test_other_tensors_and_parameters_are_listed(tmp_path):
    run = run_of()
    save(tmp_path / "c", *run)
    other = Net()
    other.more = nn.Linear(2, 3, bias=False)
    del other.norm.running_mean
    with pytest.raises(ValueError, match=r"running_mean: expected \(16,\), found nothing") as caught:
        load(tmp_path / "c", other)
    assert "more.weight: expected nothing, found (3, 2)" in str(caught.value)
    model = Net()
    less = torch.optim.AdamW(list(model.parameters())[1:])
    with pytest.raises(ValueError, match=r"number 0 should be first\.u, is first\.v"):
        load(tmp_path / "c", model, less)
    model = Net()
    model.head.weight.data = torch.empty(0)
    with pytest.raises(ValueError, match="as ZeRO-3 leaves parameters"):
        load(tmp_path / "c", model)


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"extra\.hook is a function, which is not saved \(no pickle\)"):
        save(tmp_path / "c", Net(), extra={"hook": lambda: None})
    assert not (tmp_path / "c").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no checkpoint"):
        save(tmp_path / "mine", Net())
    assert (tmp_path / "mine" / "thesis.tex").exists()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load(tmp_path / "nowhere", Net())


def test_a_kill_between_the_renames_leaves_the_last_good_one(tmp_path):
    model = Net()
    save(tmp_path / "c", model, extra={"n": 1})
    shutil.move(tmp_path / "c", tmp_path / ".c.previous")
    (tmp_path / ".c.new").mkdir()  # half written
    (tmp_path / ".c.new" / "model.safetensors").write_bytes(b"half")
    assert load(tmp_path / "c", model)["n"] == 1
    save(tmp_path / "c", model, extra={"n": 2})
    assert load(tmp_path / "c", model)["n"] == 2


def test_damage_is_noticed_and_the_one_before_taken(tmp_path):
    model = Net()
    save(tmp_path / "a", model, extra={"n": 1})
    save(tmp_path / "b", model, extra={"n": 2})
    whole = (tmp_path / "b" / "model.safetensors").read_bytes()
    (tmp_path / "b" / "model.safetensors").write_bytes(whole[:-7])
    with pytest.raises(ValueError, match=r"damaged: model\.safetensors should have \d+ bytes and has"):
        load(tmp_path / "b", model)
    assert latest(tmp_path) == tmp_path / "a"
    shutil.move(tmp_path / "a", tmp_path / ".b.previous")
    with pytest.warns(UserWarning, match="the one before it is taken"):
        assert load(tmp_path / "b", model)["n"] == 1
    assert latest(tmp_path / "nowhere") is None


def test_latest_takes_the_most_steps(tmp_path):
    run = run_of()
    torch.manual_seed(1)
    for name in ("b", "a"):
        train(run, 2)
        save(tmp_path / name, *run)
    assert latest(tmp_path) == tmp_path / "a"


def test_half_precision_moments_come_back_as_they_were(tmp_path):
    """torch casts loaded state to the parameter's type; a bf16 model with float32 moments must not lose them."""
    model = nn.Linear(3, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    moment = torch.randn(3, 3)
    optimizer.state[model.weight]["momentum_buffer"] = moment
    save(tmp_path / "c", model, optimizer)
    fresh = nn.Linear(3, 3).bfloat16()
    made = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    load(tmp_path / "c", fresh, made)
    assert torch.equal(made.state[fresh.weight]["momentum_buffer"], moment)


def test_generators_of_missing_processes_are_reported(tmp_path):
    save(tmp_path / "c", Net())
    index = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    del index["files"]["rng-0.safetensors"]
    (tmp_path / "c" / "checkpoint.json").write_text(json.dumps(index))
    (tmp_path / "c" / "rng-0.safetensors").unlink()
    with pytest.warns(UserWarning, match="has no generator states for this one"):
        load(tmp_path / "c", Net())


EDITS = {
    "no-layers": (lambda index: index.pop("layers"), "'layers' is missing"),
    "no-files": (lambda index: index.pop("files"), "'files' is missing"),
    "files": (lambda index: index.update(files=[1]), "'files' is missing or of another type"),
    "rank": (
        lambda index: index["layers"]["first"]["ranks"].update(rank=99),
        "layer first: rank <= active <= capacity",
    ),
    "capacity": (lambda index: index["layers"]["first"]["ranks"].update(capacity=-1), "layer first: rank <= active"),
    "rank-word": (lambda index: index["layers"]["first"]["ranks"].update(rank="two"), "are two, "),
    "growing": (lambda index: index["layers"]["first"]["ranks"].pop("growing"), "layer first lacks max_rank, growing"),
    "layer": (lambda index: index["layers"].update(first=3), "layer first is not described"),
    "optimizer": (lambda index: index["optimizers"][0].pop("parameters"), "an optimizer lacks type, parameters"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_index_is_named(tmp_path, name):
    edit, said = EDITS[name]
    save(tmp_path / "c", *run_of())
    file = tmp_path / "c" / "checkpoint.json"
    index = json.loads(file.read_text())
    edit(index)
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"checkpoint.json is damaged or was edited: .*{said}"):
        load(tmp_path / "c", *run_of())


@pytest.mark.parametrize("name", ["model", "state", "rng-0"])
def test_damage_that_keeps_the_size_is_named(tmp_path, name):
    save(tmp_path / "c", *run_of())
    file = tmp_path / "c" / f"{name}.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(ValueError, match=f"{name}.safetensors is damaged"):
        load(tmp_path / "c", *run_of())


def test_state_of_another_optimizer_is_refused(tmp_path):
    save(tmp_path / "c", *run_of())
    model, optimizer, *_ = run_of(optimizer="sgd")
    with pytest.raises(ValueError, match="the state of AdamW, which SGD cannot take over"):
        load(tmp_path / "c", model, optimizer)
    with pytest.raises(TypeError, match=r"the optimizer is a str; a torch\.optim\.Optimizer is needed"):
        load(tmp_path / "c", model, ["adam"])


def test_a_folder_that_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"is no checkpoint: it has no checkpoint\.json"):
        load(tmp_path, Net())
