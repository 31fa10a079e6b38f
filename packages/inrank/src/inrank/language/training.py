"""The training loop: one model, one method, one folder that a killed run goes on from exactly.

What a step sees is a function of the seed and the step's number: its sequences, its dropout, its learning rate. So a
checkpoint needs weights, ranks, optimizer and counters only, and a run that was killed at any instant repeats, bit for
bit, what an undisturbed run does from its last checkpoint on (same machine, same number of threads).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inrank.language.baselines import assemble
from inrank.language.costs import training_flops
from inrank.language.data import TokenWindows, mixed_seed, read_text, tokenizer_for
from inrank.language.engines import engine_for
from inrank.language.gpt import parameter_count
from inrank.language.presets import ConfigError, RunConfig
from inrank.language.run_folder import RunFolder
from inrank.language.tokenizers import Tokenizer
from inrank.stages import finalize
from inrank.wrapping import low_rank_layers

__all__ = ["Counters", "NonFiniteError", "Texts", "Trainer"]


class NonFiniteError(FloatingPointError):
    """A loss or gradient became NaN or infinite; says at which step and in which layer."""


@dataclass
class Counters:
    """How far a run is.

    Attributes:
        step: Optimizer steps done.
        flops: Floating-point operations of its passes so far, by the formula of `inrank.flops`.
        cpu_seconds: Processor time of training, rank checks included, validation not [s].
        loss: Training loss of the last step [nats].
    """

    step: int = 0
    flops: float = 0.0
    cpu_seconds: float = 0.0
    loss: float = math.nan


@dataclass(frozen=True)
class Texts:
    """What is read once and may be shared by several runs.

    Attributes:
        tokenizer: Of both.
        train: Tokens to learn from.
        validation: Tokens to validate with.
    """

    tokenizer: Tokenizer
    train: Tensor
    validation: Tensor

    @classmethod
    def read(cls, config: RunConfig) -> Texts:
        """As a configuration asks for."""
        tokenizer = tokenizer_for(config.data)
        train, validation = (tokenizer.encode(read_text(config.data, split)) for split in ("train", "validation"))
        return cls(tokenizer, train, validation)


class Trainer:
    """Trains a language model.

    Args:
        config: What and how.
        folder: Where its log and checkpoints go; None writes nothing.
        texts: Already read; otherwise they are read as the configuration says.
        report: Called after each step with the part that is done and a line about it.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        texts: Texts | None = None,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        self.config = config
        self.engine = engine_for(config.trainer)
        if self.engine.processes > 1 and config.method.grows and config.inrank.storage == "resize":
            raise ConfigError(
                f'inrank.storage = "resize" does not work with {self.engine.processes} processes, whose gradients are '
                'exchanged in buffers of fixed size: set inrank.storage = "reserve"'
            )
        self.accumulation = config.trainer.accumulation(self.engine.processes)
        texts = texts or Texts.read(config)
        self.tokenizer = texts.tokenizer
        with _split_named("training"):
            self.windows = TokenWindows(texts.train, config.model.context, mixed_seed(config.seed, 2))
        with _split_named("validation"):
            held_out = TokenWindows(texts.validation, config.model.context)
        self._validation = held_out.evenly(config.trainer.evaluation_sequences)
        built = assemble(config, self.tokenizer.vocabulary)
        self.model, self.optimizer, self.controller = built.model, built.optimizer, built.controller
        self._called = self.engine.prepare(self.model, self.optimizer)
        self.counters = Counters()
        self.history: list[dict[str, Any]] = []
        self._events_logged = 0
        self._report = report or (lambda done, line: None)
        self.folder = RunFolder(folder) if folder is not None else None
        if self.folder is not None and self.engine.process == 0:
            self.folder.begin(config, self.tokenizer)

    # -- the loop ------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """Part of the run that is done, in [0, 1]."""
        budget, trainer = self.config.trainer.flops, self.config.trainer
        return min(1.0, self.counters.flops / budget if budget else self.counters.step / trainer.steps)

    def run(self, until: int | None = None) -> float:
        """Train to the end, or to a step.

        Returns:
            The validation loss then [nats per token].

        Raises:
            NonFiniteError: Loss or gradients are not finite; the last checkpoint stays.
        """
        with _threads(self.config.trainer.threads):
            return self._run(until)

    def _run(self, until: int | None) -> float:
        trainer = self.config.trainer
        if self.counters.step == 0 and not self.history:
            self._validate()
        while self.progress < 1.0 and (until is None or self.counters.step < until):
            self.step()
            step, done = self.counters.step, self.progress >= 1.0
            if done or step % trainer.evaluate_every == 0:
                self._validate()
            if done or (trainer.checkpoint_every and step % trainer.checkpoint_every == 0):
                self.save()
        return float(next(line["loss"] for line in reversed(self.history) if line["kind"] == "validation"))

    def step(self) -> float:
        """One optimizer step.

        Returns:
            Its training loss [nats per token].

        Raises:
            NonFiniteError: Loss or gradients are not finite.
        """
        began = time.process_time()
        rate = self._set_learning_rate()
        loss = self._accumulate()
        self.engine.unscale(self.optimizer)
        norm = self._clip(loss)
        self.engine.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.flops += self._step_flops()
        self.counters.step += 1
        self._change_ranks()
        self.counters.cpu_seconds += time.process_time() - began
        self.counters.loss = loss
        self._log("step", loss=loss, learning_rate=rate, gradient_norm=norm, **self._spent())
        self._report(self.progress, f"loss {loss:.3f}")
        return loss

    def evaluate(self) -> float:
        """Mean loss over the validation sequences, which are always the same [nats per token]."""
        self.model.eval()
        tokens, targets = self._validation
        total = 0.0
        size = self.config.trainer.batch_size
        with torch.no_grad():
            for start in range(0, len(tokens), size):
                part = slice(start, start + size)
                loss = self.model(tokens[part].to(self.engine.device), targets[part].to(self.engine.device))
                total += float(loss) * len(tokens[part])
        self.model.train()
        return total / len(tokens)

    def bare_step(self) -> None:
        """The passes and the update of a step and nothing else, to measure what it takes."""
        self._accumulate()
        self.engine.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)

    # -- parts of a step -----------------------------------------------------------------------------------------

    def _step_flops(self) -> float:
        tokens = self.config.trainer.sequences * self.config.model.context
        return float(tokens * training_flops(self.model, self.config.model.shape(self.tokenizer.vocabulary)))

    def _set_learning_rate(self) -> float:
        settings = self.config
        rate = settings.optimizer.learning_rate * settings.schedule.factor(self.counters.step, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        return rate

    def _accumulate(self) -> float:
        trainer, engine = self.config.trainer, self.engine
        first = self.counters.step * trainer.sequences + engine.process * trainer.batch_size
        total = torch.zeros((), device=engine.device)
        with torch.random.fork_rng(devices=[engine.device] if engine.device.type == "cuda" else []):
            torch.manual_seed(mixed_seed(self.config.seed, 3, self.counters.step, engine.process))
            for part in range(self.accumulation):
                position = first + part * trainer.batch_size * engine.processes
                tokens, targets = self.windows.batch(position, trainer.batch_size)
                with engine.accumulating(self._called, part + 1 == self.accumulation):
                    loss = self._called(tokens.to(engine.device), targets.to(engine.device)) / self.accumulation
                    engine.backward(loss)
                total += loss.detach()
        return engine.mean(total)

    def _clip(self, loss: float) -> float:
        """Clip gradients; returns their norm before."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        size = float(norm)
        if not (math.isfinite(loss) and (math.isfinite(size) or self.config.trainer.precision == "fp16")):
            raise NonFiniteError(self._complaint(loss))
        if self.config.optimizer.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.optimizer.clip_norm, norm)
        return size

    def _complaint(self, loss: float) -> str:
        named = list(self.model.named_parameters())
        broken = [f"the weight {name}" for name, p in named if not torch.isfinite(p).all()]
        broken += [f"the gradient of {name}" for name, p in named if p.grad is not None and not p.grad.isfinite().all()]
        where = broken[0] if broken else "the loss"
        kept = self.folder.latest() if self.folder else None
        stays = f"the last good checkpoint is {kept}" if kept else "no checkpoint had been written"
        return (
            f"step {self.counters.step}: {where} is not finite (loss {loss}); {stays}; lower optimizer.learning_rate "
            "or optimizer.clip_norm"
        )

    def _change_ranks(self) -> None:
        step = self.counters.step
        if self.controller is None:
            return
        self.controller.step()
        for event in self.controller.events[self._events_logged :]:
            values = asdict(event)
            self._log("rank", change=values.pop("kind"), **{k: v for k, v in values.items() if k != "step"})
        self._events_logged = len(self.controller.events)
        if step == self.config.method.finalize_at:
            report = finalize(self.model, self.optimizer, release=self.engine.processes == 1)
            self._log("finalize", ranks=self.ranks(), bounds={layer.name: layer.bound for layer in report.layers})

    def ranks(self) -> dict[str, int]:
        """Rank of each low-rank layer."""
        return {name: layer.rank for name, layer in low_rank_layers(self.model).items()}

    # -- log and checkpoints -------------------------------------------------------------------------------------

    def _spent(self) -> dict[str, float]:
        return {"flops": self.counters.flops, "cpu_seconds": self.counters.cpu_seconds}

    def _validate(self) -> None:
        loss = self.evaluate()
        self._log("validation", loss=loss, ranks=self.ranks(), parameters=parameter_count(self.model), **self._spent())
        self._write_log()

    def _write_log(self) -> None:
        if self.folder is not None and self.engine.process == 0:
            self.folder.write_log(self.history)

    def _log(self, kind: str, **values: Any) -> None:
        self.history.append({"step": self.counters.step, "kind": kind, **values})

    def save(self) -> None:
        """Write a checkpoint; a kill in the middle leaves the one before."""
        self._write_log()
        if self.folder is not None:
            # galore-torch keeps projectors in its state, which are objects of its own
            optimizer = None if self.config.method.name == "galore" else self.optimizer
            self.folder.save(self.model, optimizer, self.controller, asdict(self.counters))

    def resume(self) -> bool:
        """Go on from the newest checkpoint of the folder.

        Returns:
            Whether there was one.

        Raises:
            ValueError: The run cannot go on exactly.
        """
        if self.config.method.name == "galore":
            raise ValueError(
                "a galore run cannot be resumed: the state of galore-torch cannot be saved; "
                "train it anew, with another --out"
            )
        counters = self.folder.load(self.model, self.optimizer, self.controller) if self.folder else None
        if counters is None or self.folder is None:
            return False
        self.counters = Counters(**counters)
        self.history = self.folder.read_log(until=self.counters.step)
        self._events_logged = len(self.controller.events) if self.controller else 0
        return True


@contextmanager
def _split_named(split: str) -> Iterator[None]:
    """Turns a ValueError inside into a ConfigError that names the split."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(
            f"{split} split: {error} (data.validation is the part of local text that is held out)"
        ) from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads, then with as many as before; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
