"""Shallow-water steps beside torch-harmonics' example solver: same equations, same grid, same scheme, float32.

Both integrate the same state with `scheme="reference"`, so that results can be compared; one row times our default
scheme, which does the same work per step.
"""

import numpy as np

IMPORTS = {"ours": ["jax", "sfno_jax.physics"], "torch_harmonics": ["torch", "torch_harmonics"]}

STEPS = 24

CASES = [
    {
        "name": f"{STEPS} steps {nlat}x{2 * nlat}, lmax {lmax}, {scheme}, {threads} thread{'s' * (threads > 1)}",
        "params": {"nlat": nlat, "lmax": lmax, "dt": dt, "scheme": scheme},
        "threads": threads,
        "peers": {"torch_harmonics": {"tolerance": 2e-3 if scheme == "ab3" else 1e-4, "goal": "speedup >= 4"}},
    }
    for nlat, lmax, dt, scheme, threads in [
        (64, 22, 150.0, "reference", 1),
        (128, 43, 150.0, "reference", 1),
        (128, 43, 150.0, "ab3", 1),
        (256, 86, 75.0, "reference", 1),
    ]
]


def inputs(case):
    """A smooth random state about the mean depth: coefficients (3, lmax, lmax)."""
    rng = np.random.default_rng(0)
    n = case.lmax
    a = np.tril(rng.standard_normal((3, n, n)) + 1j * rng.standard_normal((3, n, n)))
    a[:, :, 0] = a[:, :, 0].real
    decay = np.exp(-np.arange(n) / 3.0)[None, :, None]
    state = a * decay * np.array([600.0, 1e-5, 1e-7])[:, None, None]
    state[0, 0, 0] = np.sqrt(4 * np.pi) * 9.80616 * 1e4
    state[1:, 0] = 0
    return {"state": state.astype("complex64")}


class ours:
    def __init__(self, case, data):
        import jax

        from sfno_jax.physics import ShallowWaterSolver

        solver = ShallowWaterSolver(
            case.nlat, 2 * case.nlat, case.dt, lmax=case.lmax, mmax=case.lmax, scheme=case.scheme
        )
        self._state = solver.initial_state(jax.numpy.asarray(data["state"]))
        self._solver = solver
        self._call = jax.jit(lambda s: solver.integrate(s, STEPS, check=False).spec)

    def run(self):
        return self._call(self._state).block_until_ready()

    def output(self):
        return _scaled(np.asarray(self.run()))


class peer_torch_harmonics:
    def __init__(self, case, data):
        import torch
        from torch_harmonics.examples import ShallowWaterSolver

        torch.set_num_threads(case.threads)
        self._solver = ShallowWaterSolver(
            case.nlat, 2 * case.nlat, case.dt, lmax=case.lmax, mmax=case.lmax, grid="legendre-gauss"
        ).float()
        self._state, self._no_grad = torch.from_numpy(data["state"]), torch.no_grad

    def run(self):
        with self._no_grad():
            return self._solver.timestep(self._state, STEPS)

    def output(self):
        return _scaled(self.run().numpy())


def _scaled(state):
    """Each variable in units of its own size, the mean geopotential apart: one tolerance holds for all three."""
    state = state.copy()
    state[0, 0, 0] -= np.sqrt(4 * np.pi) * 9.80616 * 1e4
    return state / np.array([600.0, 1e-5, 1e-6])[:, None, None]
