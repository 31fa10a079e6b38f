r"""A three-layer linear network under gradient flow or gradient descent, and the spectra of its updates.

.. math:: \dot W_l = -\partial L/\partial W_l, \qquad L = \tfrac12\lVert M - W_3 W_2 W_1\rVert_F^2

What is simulated here is what `inrank.theory` knows in closed form where the initialization is aligned with the
target; from any other initialization (random orthogonal, Gaussian) the simulation is all there is. Source of the
setting: Zhao et al. 2023 (InRank, arXiv:2306.11250), after Saxe et al. 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["LinearRun", "ThreeLayerLinear", "random_orthogonal"]

Float = NDArray[np.float64]
Weights = tuple[Tensor, Tensor, Tensor]

# Dormand and Prince 1980, RK5(4)7M: stages, and fifth minus fourth order weights.
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


@dataclass(frozen=True)
class LinearRun:
    """What a run leaves.

    Attributes:
        times: (points,).
        update_spectra: Singular values of W_l(t) - W_l(0), (points, 3, modes), descending; layer 1 is next to the
            input. Layers of other shapes are cut to `modes` = the least of all sizes.
        weight_spectra: Those of W_l(t), (points, 3, modes).
        loss: (points,).
    """

    times: Float
    update_spectra: Float
    weight_spectra: Float
    loss: Float


def random_orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A matrix with orthonormal columns (rows >= columns) or rows, from the uniform distribution; float64."""
    gaussian = torch.randn(max(rows, columns), min(rows, columns), dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(gaussian)
    q = torch.as_tensor(q * r.diagonal().sign())
    return q if rows >= columns else q.T.contiguous()


class ThreeLayerLinear:
    """y = W3 W2 W1 x, to be trained to the target matrix M; float64 throughout.

    Args:
        target: M, (outputs, inputs).
        weights: W1 (hidden1, inputs), W2 (hidden2, hidden1), W3 (outputs, hidden2): the initialization.

    Raises:
        ValueError: Shapes that do not fit, or values that are not finite.
    """

    def __init__(self, target: ArrayLike | Tensor, weights: tuple[ArrayLike | Tensor, ...]) -> None:
        self.target = _matrix(target, "target")
        if len(weights) != 3:
            raise ValueError(f"weights has {len(weights)} matrices; expected 3: W1, W2, W3")
        first, second, third = (_matrix(w, f"weights[{i}]") for i, w in enumerate(weights))
        shapes = [tuple(w.shape) for w in (first, second, third)]
        hidden = (shapes[0][0], shapes[1][0])
        expected = [(hidden[0], self.target.shape[1]), (hidden[1], hidden[0]), (self.target.shape[0], hidden[1])]
        if shapes != expected:
            raise ValueError(
                f"weights have the shapes {shapes}; expected {expected} for a target {tuple(self.target.shape)}"
            )
        self.weights: Weights = (first, second, third)

    @classmethod
    def aligned(
        cls,
        singular_values: ArrayLike,
        *,
        gain: float,
        shape: tuple[int, int] | None = None,
        hidden: int | None = None,
        seed: int = 0,
    ) -> Self:
        """A target with random singular vectors and weights aligned with it, as the closed form asks.

        Args:
            singular_values: s, (modes,).
            gain: a: all weights have `modes` singular values a and no others.
            shape: (outputs, inputs) [default: modes x modes].
            hidden: Width of the hidden layers [default: modes].
            seed: Of the rotations.

        Raises:
            ValueError: A size below the number of modes, or a gain that is not positive.
        """
        s = torch.as_tensor(np.asarray(singular_values, np.float64).copy())
        modes = len(s)
        outputs, inputs = shape or (modes, modes)
        hidden = modes if hidden is None else hidden
        if min(outputs, inputs, hidden) < modes:
            raise ValueError(
                f"sizes are outputs {outputs}, inputs {inputs}, hidden {hidden}; expected {modes} or more: one "
                "direction for each singular value"
            )
        _positive(gain)
        generator = torch.Generator().manual_seed(seed)
        u, v, r1, r2 = (random_orthogonal(n, modes, generator) for n in (outputs, inputs, hidden, hidden))
        return cls(u * s @ v.T, (gain * r1 @ v.T, gain * r2 @ r1.T, gain * u @ r2.T))

    @classmethod
    def orthogonal(cls, target: ArrayLike | Tensor, *, gain: float, hidden: int | None = None, seed: int = 0) -> Self:
        """Random (semi-)orthogonal weights of a gain, not aligned with the target.

        Args:
            target: M, (outputs, inputs).
            gain: Of every layer.
            hidden: Width of the hidden layers [default: the larger of outputs and inputs].
            seed: Of the weights.

        Raises:
            ValueError: A gain that is not positive, or a target that is not a matrix.
        """
        matrix = _matrix(target, "target")
        _positive(gain)
        outputs, inputs = matrix.shape
        width = max(outputs, inputs) if hidden is None else hidden
        generator = torch.Generator().manual_seed(seed)
        shapes = ((width, inputs), (width, width), (outputs, width))
        first, second, third = (gain * random_orthogonal(m, n, generator) for m, n in shapes)
        return cls(matrix, (first, second, third))

    def loss(self, weights: Weights | None = None) -> float:
        """Half of the squared Frobenius norm of what is not learned yet."""
        first, second, third = self.weights if weights is None else weights
        return 0.5 * float((self.target - third @ second @ first).square().sum())

    def flow(self, times: ArrayLike, *, tolerance: float = 1e-9) -> LinearRun:
        """Gradient flow, by the Dormand-Prince pair with its step held to a tolerance.

        Args:
            times: Where spectra are taken, from 0 on, ascending.
            tolerance: Error of a step, absolute and relative to the largest weight.

        Raises:
            ValueError: Times that do not ascend from 0 or more.
            FloatingPointError: The weights stop being finite.
        """
        return self._record(times, lambda weights, span: self._integrate(weights, span, tolerance))

    def descend(self, times: ArrayLike, *, learning_rate: float = 1e-3) -> LinearRun:
        """Gradient descent, whose k-th step is at the time k * learning_rate.

        Args:
            times: Where spectra are taken (at the last step before each), from 0 on, ascending.
            learning_rate: Step.

        Raises:
            ValueError: Times that do not ascend from 0 or more, or a learning rate that is not positive.
            FloatingPointError: The weights stop being finite: the learning rate is too large.
        """
        if not learning_rate > 0:
            raise ValueError(f"learning_rate is {learning_rate}; expected a positive number")
        taken, wanted = 0, 0.0

        def advance(weights: Weights, span: float) -> Weights:
            nonlocal taken, wanted
            wanted += span
            while (taken + 1) * learning_rate <= wanted * (1 + 1e-12):
                weights = _moved(weights, [(learning_rate, self._velocity(weights))])
                taken += 1
            return weights

        return self._record(times, advance)

    def _record(self, times: ArrayLike, advance: Callable[[Weights, float], Weights]) -> LinearRun:
        points = np.asarray(times, np.float64)
        if points.ndim != 1 or not points.size or points[0] < 0 or (np.diff(points) < 0).any():
            raise ValueError(f"times must be (points,), ascending from 0 or more; got shape {points.shape}")
        modes = min(min(w.shape) for w in self.weights)
        updates, spectra, losses = [], [], []
        weights, now = self.weights, 0.0
        for time in points:
            weights, now = advance(weights, float(time - now)), float(time)
            if not all(bool(w.isfinite().all()) for w in weights):
                raise FloatingPointError(f"weights are not finite at t = {time}; take a smaller learning rate")
            change = [w - start for w, start in zip(weights, self.weights, strict=True)]
            updates.append([torch.linalg.svdvals(x)[:modes].numpy() for x in change])
            spectra.append([torch.linalg.svdvals(w)[:modes].numpy() for w in weights])
            losses.append(self.loss(weights))
        return LinearRun(points, np.array(updates), np.array(spectra), np.array(losses))

    def _integrate(self, weights: Weights, span: float, tolerance: float) -> Weights:
        done, step = 0.0, min(span, 1e-2)
        while done < span:
            step = min(step, span - done)
            slopes = [self._velocity(weights)]
            proposal = weights
            for row in _STAGES:
                proposal = _moved(weights, [(step * c, k) for c, k in zip(row, slopes, strict=True)])
                slopes.append(self._velocity(proposal))
            scale = tolerance * max(1.0, *(float(w.abs().max()) for w in weights))
            error = max(
                float(sum((c * k[i] for c, k in zip(_ERROR, slopes, strict=True)), torch.zeros(())).abs().max())
                for i in range(3)
            )
            ratio = step * error / scale
            if ratio <= 1:
                weights, done = proposal, (span if step >= span - done else done + step)
            elif not np.isfinite(ratio) and step < 1e-12:
                raise FloatingPointError("the weights are not finite; take a smaller gain or target")
            step *= 0.2 if not np.isfinite(ratio) else min(5.0, max(0.2, 0.9 * (ratio + 1e-16) ** -0.2))
        return weights

    def _velocity(self, weights: Weights) -> Weights:
        first, second, third = weights
        outer, inner = third @ second, second @ first
        missing = self.target - outer @ first
        return outer.T @ missing, third.T @ missing @ first.T, missing @ inner.T


def _moved(weights: Weights, terms: list[tuple[float, Weights]]) -> Weights:
    moved = [w.clone() for w in weights]
    for factor, direction in terms:
        for w, d in zip(moved, direction, strict=True):
            w.add_(d, alpha=factor)
    return moved[0], moved[1], moved[2]


def _matrix(values: ArrayLike | Tensor, name: str) -> Tensor:
    matrix = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values, np.float64))
    matrix = matrix.detach().to(torch.float64)
    if matrix.ndim != 2 or not matrix.numel() or not matrix.isfinite().all():
        raise ValueError(f"{name} must be a matrix of finite numbers, got shape {tuple(matrix.shape)}")
    return matrix


def _positive(gain: float) -> None:
    if not (gain > 0 and np.isfinite(gain)):
        raise ValueError(f"gain is {gain}; expected a positive number (zero is a saddle: nothing would move)")
