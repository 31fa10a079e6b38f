"""What each of two processes does for test_distributed.py; writes what it saw as JSON."""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import inrank.controller
from inrank import InRankConfig, InRankEfficientLinear, InRankLinear
from inrank.checkpoint import load, save
from inrank.controller import RankController
from inrank.layers.sharding import read_whole


class Net(nn.Module):
    def __init__(self, kind=InRankLinear, storage="reserve"):
        super().__init__()
        torch.manual_seed(0)
        config = InRankConfig(
            rank=1, buffer=2, max_rank=11, warmup_steps=1, check_every=2, threshold=0.999, storage=storage
        )
        self.first = kind(11, 14, config=config)
        self.second = kind(14, 11, config=config)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def batch(step, rank, count):
    x = torch.randn(8 * count, 11, generator=torch.Generator().manual_seed(step))
    return x[8 * rank : 8 * rank + 8]


def train(model, optimizer, controller, steps, rank, count):
    for step in steps:
        optimizer.zero_grad()
        x = batch(step, rank, count)
        (model(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        controller.step()


def digest(model, optimizer):
    parts = [read_whole(p.detach()) for p in model.parameters()]
    parts += [read_whole(v) for p in model.parameters() for v in optimizer.state[p].values() if torch.is_tensor(v)]
    return hashlib.sha256(b"".join(p.contiguous().numpy().tobytes() for p in parts)).hexdigest()


def seen(model, optimizer, controller):
    return {
        "ranks": [layer.rank for layer in controller.layers.values()],
        "digest": digest(model, optimizer),
        "events": len(controller.events),
        "loss": float((model(batch(99, 0, 1)) - batch(99, 0, 1).flip(1)).square().mean().detach()),
    }


def ddp(rank, count, folder):
    def fresh():
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, RankController(model, optimizer, log=folder / "events.jsonl")

    model, optimizer, controller = fresh()
    if rank == 1:
        inrank.controller.judge = None  # only process 0 may decide
    train(model, optimizer, controller, range(5), rank, count)
    save(folder / "ddp", model, optimizer, controller)
    train(model, optimizer, controller, range(5, 10), rank, count)
    result = {"straight": seen(model, optimizer, controller)}
    lines = (folder / "events.jsonl").read_text().count("\n") if rank == 0 else None
    dist.barrier()
    model, optimizer, controller = fresh()
    load(folder / "ddp", model, optimizer, controller)
    train(model, optimizer, controller, range(5, 10), rank, count)
    result |= {"resumed": seen(model, optimizer, controller), "lines": lines}
    with torch.no_grad():
        if rank == 0:
            model.module.second.u[0, 0] = float("nan")
    try:
        controller.check()
    except FloatingPointError as error:
        result["error"] = str(error)
    try:
        RankController(DistributedDataParallel(Net(storage="resize")), None)
    except ValueError as error:
        result["refused"] = str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RankController(Net(storage="resize"), None)
    result["warned"] = [str(each.message) for each in caught]
    return result


def fsdp(rank, count, folder, kind):
    mesh = init_device_mesh("cpu", (count,))

    def fresh():
        model = Net(kind)
        fully_shard(model.first, mesh=mesh)
        fully_shard(model.second, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, RankController(model, optimizer)

    model, optimizer, controller = fresh()
    result = {"sharded": type(model.first.u).__name__, "local": list(model.first.v.to_local().shape)}
    train(model, optimizer, controller, range(5), rank, count)
    save(folder / kind.__name__, model, optimizer, controller)
    result["young"] = len(controller.state_dict()["young"][0])
    train(model, optimizer, controller, range(5, 10), rank, count)
    result["straight"] = seen(model, optimizer, controller)
    model, optimizer, controller = fresh()
    load(folder / kind.__name__, model, optimizer, controller)
    train(model, optimizer, controller, range(5, 10), rank, count)
    result["resumed"] = seen(model, optimizer, controller)
    controller._change("first", controller.layers["first"].rank - 1)  # a rotation, of moments in shards
    result["rotated"] = seen(model, optimizer, controller)
    try:
        resized = Net(kind, "resize")
        fully_shard(resized, mesh=mesh)
        RankController(resized, torch.optim.AdamW(resized.parameters()))
    except ValueError as error:
        result["refused"] = str(error)
    return result


def accelerated(rank, count):
    accelerator = Accelerator(cpu=True)
    model = Net(InRankEfficientLinear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    controller = RankController(model, optimizer)
    for step in range(12):
        with accelerator.accumulate(model):
            x = batch(step, rank, count)
            accelerator.backward((model(x) - x.flip(1)).square().mean())
            optimizer.step()
            controller.step()
            optimizer.zero_grad()
    inner = accelerator.unwrap_model(model)
    result = {"wrapped": type(model).__name__, **seen(inner, optimizer.optimizer, controller)}
    result["steps"] = controller.steps
    return result


def main():
    folder, count = Path(sys.argv[1]), 2
    torch.set_num_threads(1)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # what is imported before the fork is imported once
    child = os.fork()
    rank = 1 if child == 0 else 0
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    dist.init_process_group("gloo")
    decide = inrank.controller.judge
    result = {"ddp": ddp(rank, count, folder)}
    inrank.controller.judge = decide
    result["full"] = fsdp(rank, count, folder, InRankLinear)
    result["efficient"] = fsdp(rank, count, folder, InRankEfficientLinear)
    result["accelerate"] = accelerated(rank, count)
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(result))
    if rank == 0:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
