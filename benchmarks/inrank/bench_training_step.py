"""A training step of GPT-2-medium-shaped blocks at a third of full rank beside full rank, LoRA and GaLore.

Four blocks of width 1,024, vocabulary 8,192 (tied head), batch 4 x 128, float32, AdamW: forward, backward, optimizer.
All sides start from the same function: the dense weight of a peer is the product of our factors, LoRA starts from it
with a zero update, GaLore trains it with projected moments. So outputs before training must be equal. LoRA and GaLore
have rank d / 3 too; everything that is not targeted is trained on every side.

"counted" is weights, gradients and optimizer state after a step; growth is of the whole process, activations included.
"""

import math

import numpy as np

IMPORTS = {
    "ours": ["torch", "inrank"],
    "full_rank": ["torch"],
    "peft": ["torch", "peft"],
    "galore": ["torch", "galore_torch"],
}

TARGETS = {"MLP and attention": ("qkv", "proj", "fc1", "fc2"), "MLP": ("fc1", "fc2")}
LEARNING_RATE = 1e-4

CASES = [
    {
        "name": f"training step d={width}, rank d/3 in {where}, {threads} thread{'s' * (threads > 1)}",
        "params": {"where": where, "width": width, "layers": 4, "vocabulary": 8192, "batch": 4, "context": 128},
        "threads": threads,
        "pairs": 7,
        "peers": peers,
    }
    for where, width, threads, peers in (
        (
            "MLP and attention",
            1024,
            1,
            {
                "full_rank": {
                    "environment": "torch",
                    "tolerance": 1e-4,
                    "goal": ["ratio <= 0.60", "counted_ratio <= 0.53"],
                },
                "peft": {"tolerance": 1e-4, "goal": "ratio <= 0.60"},
                "galore": {"tolerance": 1e-4, "goal": "ratio <= 0.60"},
            },
        ),
        (
            "MLP",
            1024,
            1,
            {
                "full_rank": {
                    "environment": "torch",
                    "tolerance": 1e-4,
                    "goal": ["ratio <= 0.72", "counted_ratio <= 0.67"],
                },
                "peft": {"tolerance": 1e-4, "goal": "ratio <= 0.72"},
                "galore": {"tolerance": 1e-4, "goal": "ratio <= 0.72"},
            },
        ),
        (
            "MLP and attention",
            512,
            1,
            {"full_rank": {"environment": "torch", "tolerance": 1e-4}},
        ),
        (
            "MLP and attention",
            1024,
            2,
            {"full_rank": {"environment": "torch", "tolerance": 1e-4, "goal": "ratio <= 0.60"}},
        ),
    )
]


def inputs(case):
    rng = np.random.default_rng(0)
    return {"tokens": rng.integers(0, case.vocabulary, (case.batch, case.context + 1))}


def shapes(width):
    """(out, in) of the matrices of a block."""
    return {"qkv": (3 * width, width), "proj": (width, width), "fc1": (4 * width, width), "fc2": (width, 4 * width)}


def factors(case, layer, name):
    """U (out, r) and V (r, in) of one matrix, r = d / 3, with a product of the size that GPT-2 starts from."""
    out, inside = shapes(case.width)[name]
    rank = case.width // 3
    rng = np.random.default_rng([layer, sorted(shapes(1)).index(name)])
    size = 0.02 / math.sqrt(rank)
    scale = math.sqrt(size)
    u = rng.standard_normal((out, rank), np.float32) * np.float32(scale)
    v = rng.standard_normal((rank, inside), np.float32) * np.float32(scale)
    return u, v


def build(case):
    """The network with dense layers; targets hold U V."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    width, heads = case.width, case.width // 64

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            for name, (out, inside) in shapes(width).items():
                setattr(self, name, nn.Linear(inside, out))

        def forward(self, x):
            batch, time, _ = x.shape
            q, k, v = (
                part.view(batch, time, heads, 64).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(width, dim=2)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(case.vocabulary, width)
            self.positions = nn.Embedding(case.context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(case.layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.tokens.weight)

    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    model = GPT()
    with torch.no_grad():
        for embedding in (model.tokens, model.positions):
            values = np.random.default_rng(1).standard_normal(tuple(embedding.weight.shape), np.float32)
            embedding.weight.copy_(torch.from_numpy(values * np.float32(0.02)))
        for i, block in enumerate(model.blocks):
            for name in shapes(width):
                u, v = factors(case, i, name)
                layer = getattr(block, name)
                layer.weight.copy_(torch.from_numpy(u) @ torch.from_numpy(v))
                layer.bias.zero_()
    return model


class Training:
    """A side: one training step per call."""

    def __init__(self, case, data, model, optimizer):
        import torch
        import torch.nn.functional as F

        self._torch, self._loss = torch, F.cross_entropy
        tokens = torch.from_numpy(data["tokens"])
        self._x, self._y = tokens[:, :-1], tokens[:, 1:]
        self._model, self._optimizer = model, optimizer
        with torch.no_grad():
            self._start = model(self._x[:1])[:, -16:].numpy().copy()

    def run(self):
        logits = self._model(self._x)
        loss = self._loss(logits.flatten(0, 1), self._y.flatten())
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def output(self):
        return self._start

    def counted_bytes(self):
        parameters = list(self._model.parameters())
        weights = sum(p.nbytes for p in parameters) + sum(b.nbytes for b in self._model.buffers())
        gradients = sum(p.nbytes for p in parameters if p.requires_grad)
        state = 0
        for values in self._optimizer.state.values():
            state += sum(value.nbytes for value in values.values() if self._torch.is_tensor(value))
            projector = getattr(values.get("projector"), "ortho_matrix", None)
            state += projector.nbytes if projector is not None else 0
        return weights + gradients + state


def ours(case, data):
    import torch

    import inrank

    model = build(case)
    rank = case.width // 3
    config = inrank.InRankConfig(rank=rank, buffer=0, max_rank=rank, init="official", spectrum="product")
    inrank.wrap(model, include=list(TARGETS[case.where]), config=config)
    with torch.no_grad():
        for i, block in enumerate(model.blocks):
            for name in TARGETS[case.where]:
                u, v = factors(case, i, name)
                getattr(block, name).u.copy_(torch.from_numpy(u))
                getattr(block, name).v.copy_(torch.from_numpy(v))
    return Training(case, data, model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))


def peer_full_rank(case, data):
    import torch

    model = build(case)
    return Training(case, data, model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))


def peer_peft(case, data):
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    rank = case.width // 3
    model = build(case)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=list(TARGETS[case.where])), model)
    for name, parameter in model.named_parameters():
        frozen = name.endswith("base_layer.weight")
        parameter.requires_grad_(not frozen)
    trained = [p for p in model.parameters() if p.requires_grad]
    return Training(case, data, model, torch.optim.AdamW(trained, lr=LEARNING_RATE))


def peer_galore(case, data):
    from galore_torch import GaLoreAdamW

    model = build(case)
    low, rest = [], []
    for name, parameter in model.named_parameters():
        targeted = any(name.endswith(f".{target}.weight") for target in TARGETS[case.where])
        (low if targeted else rest).append(parameter)
    projection = {"rank": case.width // 3, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    groups = [{"params": rest}, {"params": low, **projection}]
    return Training(case, data, model, GaLoreAdamW(groups, lr=LEARNING_RATE, no_deprecation_warning=True))
