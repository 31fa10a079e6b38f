"""The controller: looks at spectra as training goes, changes ranks, and takes the optimizer along."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from inrank.config import InRankConfig
from inrank.distributed import (
    check_parallel,
    copy_from_first,
    copy_layer_from_first,
    is_first_process,
    process_count,
)
from inrank.distributed import unwrapped_model as unwrap
from inrank.events import DEAD_CHECKS, EventLog, RankEvent, warn_of
from inrank.flops import break_even_rank
from inrank.initialization import derived_generator
from inrank.layers import LowRankLayer
from inrank.layers.sharding import is_sharded
from inrank.matching import plain_name
from inrank.null_model import null_ranks as ranks_without_training
from inrank.optimizer_state import apply_factor_change, check_optimizer_state, check_owned
from inrank.rank_decision import LayerState, Verdict, judge, largest_rank, next_rank
from inrank.rank_report import LayerReport, RankReport, check_ranks
from inrank.wrapping import low_rank_layers
from inrank.young_directions import YoungDirections, checked_optimizer

__all__ = ["RankController"]


class RankController:
    """Changes the ranks of a model's low-rank layers as their spectra ask, in optimizer steps.

    Call `step` after each optimizer step, or `attach` once and never think of it again::

        model = inrank.wrap(model, config=config)
        optimizer = torch.optim.AdamW(model.parameters())
        controller = RankController(model, optimizer)
        for x, y in data:
            loss(model(x), y).backward()
            optimizer.step()
            controller.step()
            optimizer.zero_grad()

    The clock is the optimizer's: evaluation, gradient accumulation and activation checkpointing do not move it, nor
    does a step that a GradScaler skips. After `warmup_steps` steps, every `check_every` steps, each layer's singular
    values are computed (Zhao et al. 2023, arXiv:2306.11250, algorithm 1), and the rank grows to what the criterion
    asks for, by at most the buffer a check, up to max_rank. Parameters keep their identity, so that optimizers,
    schedulers and hooks stay valid; the optimizer's state is carried (`inrank.optimizer_state`), and fresh directions
    get steps of their own age (`inrank.young_directions`).

    With ``strict`` layers, counts, rule, cap and growth are those of the official release with one forward a step; its
    counter is one ahead, since it looks at the factors in the forward that follows. Growth exposes reserved random
    directions, and their steps are not corrected.

    Under torch.distributed process 0 decides; ranks and changed factors are broadcast.

    Args:
        model: As the training loop calls it: bare, DDP, FSDP2 or compiled.
        optimizer: The optimizer(s) of the factors; None if updates are made by hand, then every call of `step`
            counts as one.
        config: Cadence, threshold and rule in place of the layers' own.
        log: File for events, as lines of JSON.
        null_ranks: Whether events and the report carry the null model's ranks (`inrank.null_model`).
        amortize: Spread the layers' checks evenly over the steps between checks, rather than all at once.
        backoff: Largest factor by which the time between a layer's checks grows while its rank stays: it doubles with
            each check that changes nothing, and falls back to check_every with the first that does. 1: never.
        correct_steps: Whether young directions get steps of their own age.
        synchronize: Whether process 0 decides for all; default: if torch.distributed runs with several processes.
        state_kinds: See `inrank.optimizer_state.apply_factor_change`.

    Attributes:
        steps: Optimizer steps seen.
        events: All that happened.
        layers: The low-rank layers by name.

    Raises:
        ValueError: If there is no low-rank layer, a factor is in no optimizer, a growing layer has no buffer, or the
            model is spread over processes in a way that forbids ``storage="resize"``.
        TypeError: If the optimizer cannot be handled.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        config: InRankConfig | None = None,
        *,
        log: str | Path | None = None,
        null_ranks: bool = True,
        amortize: bool = False,
        backoff: int = 1,
        correct_steps: bool = True,
        synchronize: bool | None = None,
        state_kinds: Mapping[str, str] | None = None,
    ) -> None:
        if config is not None and not isinstance(config, InRankConfig):
            raise TypeError(f"config is a {type(config).__name__}; an InRankConfig is needed")
        self.layers = low_rank_layers(model)
        if not self.layers:
            raise ValueError("the model has no low-rank layer; call inrank.wrap(model) before the controller is made")
        self.model = unwrap(model)
        self.config = config
        if backoff < 1:
            raise ValueError(f"backoff is {backoff}; it must be at least 1, which checks at every due step")
        self.amortize, self.backoff, self.state_kinds = amortize, backoff, dict(state_kinds or {})
        self.synchronize = process_count() > 1 and synchronize is not False
        self.steps = 0
        self.events: list[RankEvent] = []
        self._states = {name: LayerState() for name in self.layers}
        self._log = EventLog(log) if log is not None and is_first_process() else None
        self._wants_null = null_ranks
        self._null: dict[str, int] | None = None
        self._pending, self._attached, self._said_forgotten = 0, False, False
        changing = {name: layer for name, layer in self.layers.items() if self._may_change(layer)}
        for name, layer in changing.items():
            if layer.buffer_size == 0:
                raise ValueError(
                    f"layer {name}: buffer is 0, so nothing is trained beyond rank {layer.rank} and no spectrum can "
                    f"ask for more; give a buffer, or max_rank={layer.rank} for a fixed rank"
                )
        check_parallel(model, changing)
        given = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        self.optimizers = tuple(checked_optimizer(each, correct_steps) for each in given)
        check_owned(self.optimizers, changing)
        self._young = [YoungDirections(each, self.layers) for each in self.optimizers] if correct_steps else []
        self._hooks: list[Any] = []
        for index, each in enumerate(self.optimizers):
            self._hooks += self._listen(each, index)
        if any(layer.config.storage == "resize" for layer in changing.values()) and self.synchronize:
            warnings.warn(
                f'{process_count()} processes run and storage is "resize": right for gradients that are averaged by '
                'hand; DDP and FSDP2 need InRankConfig(storage="reserve")',
                stacklevel=2,
            )

    # -- the clock -----------------------------------------------------------------------------------------------

    def _listen(self, optimizer: Optimizer, index: int) -> list[Any]:
        """Hooks around an optimizer's steps; the last optimizer given is the clock."""
        young = self._young[index] if self._young else None

        def before(*_: Any) -> None:
            if young is not None:
                young.before_step()

        def after(stepped: Optimizer, *_: Any) -> None:
            found_inf = getattr(stepped, "found_inf", None)  # a GradScaler leaves it to a fused optimizer to skip
            if found_inf is not None and float(found_inf) != 0:
                return
            if young is not None:
                young.after_step()
            if index == len(self.optimizers) - 1:
                self._pending += 1
                if self._attached:
                    self._advance()
                else:
                    self._notice_forgotten()

        return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def _notice_forgotten(self) -> None:
        config = self._config(next(iter(self.layers.values())))
        if self._pending > config.warmup_steps + 10 * config.check_every and not self._said_forgotten:
            self._said_forgotten = True
            warnings.warn(
                f"the optimizer has made {self._pending} steps since controller.step() was last called, so no rank was "
                "looked at: call it after every optimizer.step(), or controller.attach() once",
                stacklevel=2,
            )

    def attach(self) -> RankController:
        """Let each optimizer step do what `step` does, which then need not be called.

        Raises:
            ValueError: If there is no optimizer.
        """
        if not self.optimizers:
            raise ValueError("there is no optimizer to attach to; give one, or call step()")
        self._attached = True
        return self

    def close(self) -> None:
        """Take the hooks off the optimizers; ranks stay as they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def step(self) -> list[RankEvent]:
        """Count the optimizer's steps since the last call, and check the layers that are due.

        Returns:
            What happened.

        Raises:
            FloatingPointError: If a factor of a layer is not finite; names layer and step.
        """
        if not self.optimizers:
            self._pending = 1
        return self._advance()

    def _advance(self) -> list[RankEvent]:
        due: dict[str, None] = {}
        for _ in range(self._pending):
            self.steps += 1
            for index, (name, layer) in enumerate(self.layers.items()):
                config = self._config(layer)
                tick = self.steps + config.strict  # the official counter is raised before it is looked at
                place = index % config.check_every if self.amortize else 0
                if tick > config.warmup_steps and tick % config.check_every == place and self._may_change(layer):
                    state = self._states[name]
                    if state.rest == 0:
                        due[name] = None
                    state.rest = max(0, state.rest - 1)
        self._pending = 0
        return self.check(due) if due else []

    def _config(self, layer: LowRankLayer) -> InRankConfig:
        return self.config or layer.config

    def _may_change(self, layer: LowRankLayer) -> bool:
        config = self._config(layer)
        return layer.growing and (config.strict or config.shrink or layer.config.rank < largest_rank(layer, config))

    # -- checks --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def check(self, names: Iterable[str] | None = None) -> list[RankEvent]:
        """Look at layers now and change their ranks, whatever the cadence says.

        Args:
            names: Of the layers; default: all that may change.

        Returns:
            What happened.

        Raises:
            FloatingPointError: If a factor of a layer is not finite; names layer and step.
            RuntimeError: If a factor is no longer the optimizer's.
        """
        chosen = (
            list(names) if names is not None else [n for n, layer in self.layers.items() if self._may_change(layer)]
        )
        check_owned(self.optimizers, {name: self.layers[name] for name in chosen}, RuntimeError)
        events: list[RankEvent] = []
        for name, verdict in zip(chosen, self._verdicts(chosen), strict=True):
            events += self._apply(name, verdict)
        for event in events:
            self.events.append(event)
            if self._log is not None:
                self._log.append(event)
        warn_of(events)
        return events

    def _verdicts(self, names: list[str]) -> list[Verdict]:
        """Process 0's verdicts; what is sharded all processes gather together."""
        table = torch.zeros(len(names), 4, dtype=torch.float64)
        errors: dict[int, FloatingPointError] = {}
        for i, name in enumerate(names):
            layer = self.layers[name]
            if not self.synchronize or is_first_process() or is_sharded(layer.u):
                try:
                    table[i, :3] = torch.tensor(judge(layer, self._config(layer)).to_row(), dtype=torch.float64)
                except FloatingPointError as error:
                    table[i, 3], errors[i] = 1, error
        if self.synchronize:
            copy_from_first(table)
        for i, name in enumerate(names):
            if table[i, 3]:
                reason = str(errors.get(i, "a factor holds values that are not finite")).split(": ")[-1]
                raise FloatingPointError(
                    f"step {self.steps}: layer {name}: {reason}; "
                    "go back to the last checkpoint and lower the learning rate, or clip gradients"
                ) from errors.get(i)
        return [Verdict.from_row(row) for row in table.tolist()]

    def _apply(self, name: str, verdict: Verdict) -> list[RankEvent]:
        layer, state = self.layers[name], self._states[name]
        config = self._config(layer)
        state.checks += 1
        state.last_ratio, state.last_wanted = verdict.ratio, verdict.wanted
        state.zero_checks = state.zero_checks + 1 if verdict.ratio is None else 0
        old, new = layer.rank, next_rank(layer, config, state, verdict)
        state.idle = 0 if new != old else state.idle + 1
        state.rest = min(2**state.idle, self.backoff) - 1
        kinds = []
        if new != old:
            self._change(name, new)
            kinds.append("grow" if new > old else "shrink")
        limit = largest_rank(layer, config)
        if verdict.ratio is not None and verdict.wanted > limit and new >= limit and not state.saturated:
            state.saturated = True
            kinds.append("saturated")
        if state.zero_checks == DEAD_CHECKS:
            kinds.append("dead")
        return [
            RankEvent(
                step=self.steps,
                layer=name,
                old_rank=old if kind in ("grow", "shrink") else new,
                new_rank=new,
                active=layer.active,
                ratio=verdict.ratio,
                wanted=verdict.wanted,
                null_rank=self.null_ranks.get(name),
                kind=kind,
            )
            for kind in kinds
        ]

    def _change(self, name: str, rank: int) -> None:
        layer = self.layers[name]
        for optimizer in self.optimizers:
            check_optimizer_state(optimizer, layer, kinds=self.state_kinds)
        how = "slice" if self._config(layer).strict else "append" if rank > layer.rank else "svd"
        generator = derived_generator(layer.config.seed, "fresh directions", name, self.steps)
        change = layer.resize(rank, how=how, generator=generator)
        for optimizer in self.optimizers:
            apply_factor_change(optimizer, layer, change, kinds=self.state_kinds)
        for young in self._young:
            young.add(name, change)
        if self.synchronize and how != "slice":
            copy_layer_from_first(layer, self.optimizers)

    # -- what there is to know -----------------------------------------------------------------------------------

    @property
    def null_ranks(self) -> dict[str, int]:
        """The null model's rank of each layer; empty if not asked for."""
        if self._null is None:
            found = ranks_without_training(self.model) if self._wants_null else {}
            self._null = {plain_name(name): rank for name, rank in found.items()}
        return self._null

    def report(self) -> RankReport:
        """The table of ranks."""
        rows = []
        for name, layer in self.layers.items():
            m, n = layer.rows // layer.groups, layer.columns
            state = self._states[name]
            rows.append(
                LayerReport(
                    name=name,
                    shape=(m, n),
                    rank=layer.rank,
                    active=layer.active,
                    full_rank=layer.full_rank,
                    max_rank=layer.max_rank,
                    break_even=int(break_even_rank(m, n)),
                    null_rank=self.null_ranks.get(name),
                    checks=state.checks,
                    ratio=state.last_ratio,
                )
            )
        return RankReport(self.steps, tuple(rows))

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if nothing had happened; JSON-able."""
        return {
            "steps": self.steps,
            "pending": self._pending,
            "ranks": {name: layer.ranks() for name, layer in self.layers.items()},
            "layers": {name: dataclasses.asdict(state) for name, state in self._states.items()},
            "young": [young.state_dict() for young in self._young],
            "events": [dataclasses.asdict(event) for event in self.events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; the log file is rewritten with the events up to there.

        Raises:
            ValueError: If a part is missing, or the layers or their ranks are others; the model's ranks are to be
                restored first.
        """
        missing = sorted({"steps", "pending", "ranks", "layers", "young", "events"} - set(state))
        if missing:
            raise ValueError(f"the state of a controller lacks {', '.join(missing)}; it was not written by state_dict")
        check_ranks(self.layers, state["ranks"])
        if len(state["young"]) != len(self._young):
            raise ValueError(
                f"the state is of {len(state['young'])} optimizers with corrected steps, the controller has "
                f"{len(self._young)}"
            )
        self.steps, self._pending = state["steps"], state["pending"]
        self._states = {name: LayerState(**values) for name, values in state["layers"].items()}
        for young, cohorts in zip(self._young, state["young"], strict=True):
            young.load_state_dict(cohorts)
        self.events = [RankEvent.from_dict(event) for event in state["events"]]
        if self._log is not None:
            self._log.rewrite(self.events)
