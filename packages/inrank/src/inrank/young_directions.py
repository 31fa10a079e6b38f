r"""Young directions take the steps that an optimizer of their own would give them.

Adam divides its averages by 1 - beta^t, since they started at zero t steps ago; t is one number per tensor. Directions
that a later growth added have averages that started at zero a < t steps ago. With t in place of a their first step is
(1 - beta_1) / sqrt(1 - beta_2) lr = 3.16 lr instead of lr. So, for as long as it matters, after each step they are put
where an optimizer that had begun with them would have put them:

    p = p_old - lr [wd p_old] - lr m / (1 - beta_1^a) / (sqrt(v / (1 - beta_2^a)) + eps),

m and v being the stored averages, which do not depend on t. The same for AMSGrad, Adamax, NAdam and RAdam. Optimizers
without such a correction (SGD, Adagrad, RMSprop, Adadelta, Rprop, Adafactor, Muon) need nothing.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inrank.layers import FactorChange, LowRankLayer
from inrank.layers.sharding import is_sharded
from inrank.optimizer_state import unwrapped_optimizer

__all__ = ["Cohort", "YoungDirections", "checked_optimizer", "corrects_steps"]

_CORRECTED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
_PLAIN = (
    torch.optim.SGD,
    torch.optim.ASGD,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Rprop,
    torch.optim.Adafactor,
    torch.optim.Muon,
)


def corrects_steps(optimizer: Optimizer) -> bool | None:
    """Whether the optimizer divides by 1 - beta^t; None if it is of no known class."""
    if type(optimizer) in _CORRECTED:
        return True
    return False if type(optimizer) in _PLAIN else None


def checked_optimizer(optimizer: Optimizer, correct_steps: bool) -> Optimizer:
    """The torch optimizer inside wrappers, if a change of rank can be carried through it.

    Args:
        optimizer: Wrapped or not.
        correct_steps: Whether an unknown class is worth a warning.

    Raises:
        TypeError: If it cannot.
    """
    optimizer = unwrapped_optimizer(optimizer)
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"the optimizer is a {name}; a torch.optim.Optimizer is needed")
    if name == "ZeroRedundancyOptimizer":
        raise TypeError("ZeroRedundancyOptimizer has only a part of the state in each process; use FSDP2 instead")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS keeps one flat vector for all parameters, which no change of rank can follow")
    if correct_steps and corrects_steps(optimizer) is None:
        warnings.warn(
            f"this package does not know how {name} counts its steps: if it divides by 1 - beta^t, the first steps of "
            "fresh directions are too large; correct_steps=False says that this is known",
            stacklevel=4,
        )
    return optimizer


@dataclass
class Cohort:
    """Directions of a factor that were added together.

    Attributes:
        layer: Name of the layer.
        factor: "u" or "v".
        directions: Their places.
        age: Optimizer steps since.
    """

    layer: str
    factor: str
    directions: list[int]
    age: int = 0


class YoungDirections:
    """Corrects the steps of young directions of one optimizer.

    `before_step` and `after_step` are to be called around each of the optimizer's steps (its hooks do that).

    Args:
        optimizer: A torch optimizer.
        layers: Low-rank layers by name.
    """

    def __init__(self, optimizer: Optimizer, layers: dict[str, LowRankLayer]) -> None:
        self.optimizer, self.layers = optimizer, layers
        self.cohorts: list[Cohort] = []
        self._corrected = corrects_steps(optimizer) is True
        self._before: list[tuple[Cohort, Tensor]] = []

    def add(self, name: str, change: FactorChange) -> None:
        """Note what a change of a layer added; a rotation mixes young and old, and leaves no youth but the fresh ones'.

        Args:
            name: Of the layer.
            change: What was done.
        """
        if not self._corrected:
            return
        if change.u_map is not None or change.new_active < change.old_active:
            self.cohorts = [cohort for cohort in self.cohorts if cohort.layer != name]
        fresh = list(range(change.kept, change.new_active))
        if change.u_map is not None:
            dead = (change.u_map == 0).all(-1).all(0)  # these have zero moments in every group
            fresh = [int(i) for i in torch.nonzero(dead).flatten()] + fresh
        for factor in ("u", "v"):
            if fresh and self.optimizer.state.get(getattr(self.layers[name], factor)):
                self.cohorts.append(Cohort(name, factor, fresh))

    def before_step(self) -> None:
        """Keep young directions as they are before the optimizer's step."""
        # `finalize` mixes directions of all ages, and nothing is added afterwards
        self.cohorts = [cohort for cohort in self.cohorts if self.layers[cohort.layer].growing]
        self._before = []
        for cohort in self.cohorts:
            parameter = getattr(self.layers[cohort.layer], cohort.factor)
            if parameter.grad is not None:  # the optimizer passes over the others
                self._before.append((cohort, _select(parameter, cohort).clone()))

    @torch.no_grad()
    def after_step(self) -> None:
        """Put young directions where an optimizer of their age would have put them."""
        if not self._before:
            return
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for cohort, old in self._before:
            parameter = getattr(self.layers[cohort.layer], cohort.factor)
            group, state = groups[id(parameter)], self.optimizer.state[parameter]
            cohort.age += 1
            own = {key: _select(value, cohort) for key, value in state.items() if value.shape == parameter.shape}
            if type(self.optimizer) is torch.optim.NAdam:
                own["gradient"] = _select(parameter.grad, cohort)
            new = _select(parameter, cohort).copy_(old)
            _step(self.optimizer, group, new, own, cohort.age)
            if not _is_view(parameter, cohort):
                _local(parameter.detach()).index_copy_(_axis(cohort), _places(parameter, cohort), new)
        grown = {
            id(cohort)
            for cohort, _ in self._before
            if _grown_up(
                self.optimizer,
                groups[id(getattr(self.layers[cohort.layer], cohort.factor))],
                cohort.age,
            )
        }
        self.cohorts = [cohort for cohort in self.cohorts if id(cohort) not in grown]
        self._before = []

    def state_dict(self) -> list[dict[str, Any]]:
        """Cohorts, JSON-able."""
        return [dataclasses.asdict(cohort) for cohort in self.cohorts]

    def load_state_dict(self, cohorts: Sequence[dict[str, Any]]) -> None:
        """Take over what `state_dict` gave."""
        self.cohorts = [Cohort(**cohort) for cohort in cohorts]
        self._before = []


def _axis(cohort: Cohort) -> int:
    return -1 if cohort.factor == "u" else -2


def _local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def _is_view(tensor: Tensor, cohort: Cohort) -> bool:
    """Whether a cohort is a run of neighbours, whose part of a tensor is a view: growth makes such."""
    first, count = cohort.directions[0], len(cohort.directions)
    return not is_sharded(tensor) and cohort.directions[-1] - first == count - 1


def _select(tensor: Tensor, cohort: Cohort) -> Tensor:
    """A cohort's part of a tensor."""
    if _is_view(tensor, cohort):
        return tensor.detach().narrow(_axis(cohort), cohort.directions[0], len(cohort.directions))
    return _local(tensor.detach()).index_select(_axis(cohort), _places(tensor, cohort))


def _places(tensor: Tensor, cohort: Cohort) -> Tensor:
    """A cohort's places in this process's part of a tensor; FSDP2 gives each process a chunk of the first axis."""
    places = torch.tensor(cohort.directions)
    if is_sharded(tensor):
        axis = tensor.ndim + _axis(cohort)
        size, start = tensor.shape[axis], 0
        coordinate = tensor.device_mesh.get_coordinate() or ()
        for length, place, placement in zip(tensor.device_mesh.shape, coordinate, tensor.placements, strict=True):
            if placement.is_shard(axis):
                chunk = -(-size // length)
                start += min(chunk * place, size)
                size = max(0, min(chunk, size - chunk * place))
        places = places[(places >= start) & (places < start + size)] - start
    return places.to(tensor.device)


def _number(value: Any) -> float:
    return value.item() if isinstance(value, Tensor) else float(value)


def _step(
    optimizer: Optimizer,
    group: dict[str, Any],
    new: Tensor,
    state: dict[str, Tensor],
    age: int,
) -> None:
    """Take the optimizer's step number `age` from `new`, in place, as torch.optim's single-tensor code does."""
    lr, eps, decay = _number(group["lr"]), group["eps"], group["weight_decay"]
    beta1, beta2 = (_number(beta) for beta in group["betas"])
    kind = type(optimizer)
    decoupled = group.get("decoupled_weight_decay", False)
    mean = state["exp_avg"]
    if decoupled and decay:
        new.mul_(1 - lr * decay)
    first = 1 - beta1**age
    if kind is torch.optim.Adamax:
        new.addcdiv_(mean, state["exp_inf"], value=-lr / first)
        return
    square = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
    second = 1 - beta2**age
    if kind is torch.optim.RAdam:
        horizon = 2 / (1 - beta2) - 1
        length = horizon - 2 * age * beta2**age / second
        if length <= 5:
            new.add_(mean, alpha=-lr / first)
            return
        rectified = math.sqrt(
            (length - 4) * (length - 2) * horizon / ((horizon - 4) * (horizon - 2) * length)
        ) * math.sqrt(second)
        new.addcdiv_(mean, square.sqrt().add_(eps), value=-lr / first * rectified)
        return
    if kind is torch.optim.NAdam:
        gradient = -state["gradient"] if group["maximize"] else state["gradient"]
        if decay and not decoupled:
            gradient = gradient.add(new, alpha=decay)
        mu, product = 0.0, 1.0
        for t in range(1, age + 1):
            mu = beta1 * (1.0 - 0.5 * 0.96 ** (t * group["momentum_decay"]))
            product *= mu
        following = beta1 * (1.0 - 0.5 * 0.96 ** ((age + 1) * group["momentum_decay"]))
        scale = square.div(second).sqrt().add_(eps)
        new.addcdiv_(gradient, scale, value=-lr * (1.0 - mu) / (1.0 - product))
        new.addcdiv_(mean, scale, value=-lr * following / (1.0 - product * following))
        return
    new.addcdiv_(mean, square.sqrt().div_(math.sqrt(second)).add_(eps), value=-lr / first)


def _grown_up(optimizer: Optimizer, group: dict[str, Any], age: int) -> bool:
    """Whether the correction by age is 1 to rounding (2^-24), as it then is for the older directions."""
    betas = [_number(beta) for beta in group["betas"]]
    if type(optimizer) is torch.optim.Adamax:
        betas = betas[:1]
    if type(optimizer) is torch.optim.NAdam:
        betas.append(0.96 ** group["momentum_decay"])
    return all(beta**age < 2.0**-24 for beta in betas)
