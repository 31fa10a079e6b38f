"""An SFNO's forward pass and training step beside torch-harmonics' example network with the same weights.

The training step is loss, gradient and Adam update of the mean squared error, as its example script does it. Equality
is shown on the network's output after three such steps from the same weights.

glibc's allocator is left as it is here; bench_sfno_kept_memory.py measures both sides with freed memory kept.
"""

import numpy as np

IMPORTS = {"ours": ["jax", "optax", "sfno_jax.models"], "torch_harmonics": ["torch", "torch_harmonics"]}

ARGUMENTS = {
    "grid": "legendre-gauss",
    "grid_internal": "legendre-gauss",
    "scale_factor": 1,
    "in_chans": 3,
    "out_chans": 3,
    "embed_dim": 32,
    "num_layers": 4,
    "residual_prediction": True,
}
LEARNING_RATE = 1e-3

CASES = [
    {
        "name": f"{what} {nlat}x{2 * nlat}, 1 thread",
        "params": {"what": what, "nlat": nlat},
        "threads": 1,
        "pairs": 7,
        "peers": {
            "torch_harmonics": {"tolerance": 2e-5 if what == "forward" else 2e-3, "goal": "speedup >= 3"},
        },
    }
    for what, nlat in (("forward", 64), ("forward", 128), ("training step", 64))
]


def inputs(case):
    """Smooth fields; weights come from `weight`, the same formula on both sides."""
    rng = np.random.default_rng(0)
    shape = (4, 3, case.nlat, 2 * case.nlat)
    return {"x": rng.standard_normal(shape).astype("float32"), "y": rng.standard_normal(shape).astype("float32")}


def weight(index, shape, complex_):
    """Deterministic weights of the parameter that is number ``index`` by name, scaled by its fan-in."""
    j = np.arange(int(np.prod(shape)))
    fan_in = shape[1] if len(shape) > 1 else 1
    values = np.sin(0.37 * j + 1.1 * index) / np.sqrt(fan_in)
    if complex_:
        values = values + 1j * np.sin(0.37 * j + 1.1 * index + 0.5) / np.sqrt(fan_in)
    return values.reshape(shape).astype("complex64" if complex_ else "float32")


class ours:
    def __init__(self, case, data):
        import jax
        import jax.numpy as jnp
        import optax
        from flax import nnx

        from sfno_jax.convert import config_from_torch_harmonics, load_torch_harmonics, to_torch_harmonics
        from sfno_jax.models import SFNO

        config = config_from_torch_harmonics({"img_size": (case.nlat, 2 * case.nlat), **ARGUMENTS})
        model = SFNO(config, rngs=nnx.Rngs(0))
        state = to_torch_harmonics(model)
        load_torch_harmonics(
            model, {k: weight(i, v.shape, np.iscomplexobj(v)) for i, (k, v) in enumerate(sorted(state.items()))}
        )
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        optimizer = optax.adam(LEARNING_RATE)
        x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"])

        def forward(params, rest, x):
            return nnx.merge(graph, params, rest)(x)

        @jax.jit
        def step(params, moments, rest, x, y):
            value, gradient = jax.value_and_grad(lambda p: jnp.mean((forward(p, rest, x) - y) ** 2))(params)
            updates, moments = optimizer.update(gradient, moments, params)
            return optax.apply_updates(params, updates), moments, value

        self._what, self._forward, self._step = case.what, jax.jit(forward), step
        self._start = (params, optimizer.init(params))
        self._state, self._rest, self._x, self._y, self._block = self._start, rest, x, y, jax.block_until_ready

    def run(self):
        if self._what == "forward":
            return self._block(self._forward(self._start[0], self._rest, self._x))
        *state, value = self._step(*self._state, self._rest, self._x, self._y)
        self._state = tuple(state)
        return self._block(value)

    def output(self):
        params, moments = self._start
        if self._what != "forward":
            for _ in range(3):
                params, moments, _ = self._step(params, moments, self._rest, self._x, self._y)
        return np.asarray(self._forward(params, self._rest, self._x))


class peer_torch_harmonics:
    def __init__(self, case, data):
        import copy

        import torch
        from torch_harmonics.examples.models import SphericalFourierNeuralOperator

        torch.set_num_threads(case.threads)
        self._torch, self._copy = torch, copy.deepcopy
        model = SphericalFourierNeuralOperator(img_size=(case.nlat, 2 * case.nlat), **ARGUMENTS).float()
        with torch.no_grad():
            for i, (_, parameter) in enumerate(sorted(model.named_parameters())):
                parameter.copy_(torch.from_numpy(weight(i, tuple(parameter.shape), parameter.is_complex())))
        self._what, self._start, self._model = case.what, model, self._copy(model)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=LEARNING_RATE)
        self._x, self._y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])

    def _train(self, model, optimizer):
        optimizer.zero_grad()
        value = self._torch.mean((model(self._x) - self._y) ** 2)
        value.backward()
        optimizer.step()
        return value

    def run(self):
        if self._what == "forward":
            with self._torch.no_grad():
                return self._start(self._x)
        return self._train(self._model, self._optimizer)

    def output(self):
        model = self._copy(self._start)
        if self._what != "forward":
            optimizer = self._torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
            for _ in range(3):
                self._train(model, optimizer)
        with self._torch.no_grad():
            return model(self._x).numpy()
