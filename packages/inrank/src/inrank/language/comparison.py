"""InRank beside what it competes with: the same data, seeds, steps and code; one table, its figures, and every run.

Fixed rank, LoRA and GaLore get as many directions as InRank-Efficient trained at the end with the same seed, buffers
included, so that they are as large as it is. Beside every rank that was found stands the one that the same rule finds
without training (`inrank.null_model`). Memory is what the allocator recorded in a training step at the final ranks.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inrank._files import write_atomically
from inrank.language.gpt import parameter_count
from inrank.language.presets import RunConfig, override
from inrank.language.training import Texts, Trainer
from inrank.memory import count_states, measure_memory
from inrank.plotting import loss_figure, memory_figure, rank_figure, save_figure
from inrank.wrapping import low_rank_layers

__all__ = ["VARIANTS", "Comparison", "Outcome", "compare", "matched", "measured", "run_variant"]

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "full rank": ("method.name=full-rank",),
    "InRank-Efficient": ("method.name=inrank-efficient",),
    "InRank-Efficient, official": (
        "method.name=inrank-efficient",
        "inrank.strict=true",
        "inrank.rank=2",
        "inrank.buffer=0.125",
        "inrank.init_scale=1.0",
        "inrank.storage=reserve",
        "inrank.init=official",
        "inrank.spectrum=product",
        "optimizer.factor_rate=1.0",
        "optimizer.factor_ratio=1.0",
    ),
    "InRank (W_0 kept)": ("method.name=inrank-full", "inrank.init=zero", "inrank.init_scale=1.0"),
    "fixed rank": ("method.name=fixed-rank",),
    "LoRA from scratch": ("method.name=lora",),
    "GaLore": ("method.name=galore",),
}
"""What may be compared, as overrides of a configuration."""

_MATCHED = ("fixed-rank", "lora", "galore")
_LEADER = "InRank-Efficient"
_COLUMNS = (
    "method",
    "validation loss",
    "± over seeds",
    "against full rank",
    "parameters",
    "mean rank",
    "mean active",
    "null rank",
    "states [MB]",
    "peak [MB]",
    "CPU s / step",
    "steps",
    "GFLOP / step",
)


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes:
        variant: Its name.
        seed: Of everything.
        loss: Validation loss at the end [nats per token].
        parameters: Stored numbers, a kept W_0 included.
        ranks: Of each low-rank layer at the end.
        active: Directions that each trains then: its rank and its buffer.
        null_ranks: Of the same rule without training.
        full_rank: min(m, n) of these layers.
        state_bytes: Weights, gradients and moments.
        peak_bytes: Measured in a training step at the final ranks.
        peak_parts: What it consists of, by `inrank.memory.PARTS`.
        steps: Optimizer steps.
        cpu_seconds: Processor time of all steps [s].
        flops: Operations of all steps.
        curve: Step, operations, CPU seconds, validation loss and mean rank at each validation.
    """

    variant: str
    seed: int
    loss: float
    parameters: int
    ranks: dict[str, int]
    active: dict[str, int]
    null_ranks: dict[str, int]
    full_rank: int
    state_bytes: int
    peak_bytes: int
    peak_parts: dict[str, int]
    steps: int
    cpu_seconds: float
    flops: float
    curve: dict[str, list[float]]

    @property
    def mean_rank(self) -> float | None:
        """Mean over the low-rank layers."""
        return statistics.fmean(self.ranks.values()) if self.ranks else None

    @property
    def mean_active(self) -> float | None:
        """Mean of the directions that are trained, buffers included, over the low-rank layers."""
        return statistics.fmean(self.active.values()) if self.active else None


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison.

    Attributes:
        budget: "steps" or "flops": what is the same for all.
        outcomes: Of each variant and seed.
        skipped: Variants that could not run, with the reason.
    """

    budget: str
    outcomes: tuple[Outcome, ...]
    skipped: Mapping[str, str]

    def table(self) -> dict[str, Any]:
        """Columns and rows, a row for each variant."""
        names = list(dict.fromkeys(outcome.variant for outcome in self.outcomes))
        full = [o.loss for o in self.outcomes if o.variant == "full rank"]
        rows = []
        for name in names:
            runs = [o for o in self.outcomes if o.variant == name]
            losses = [o.loss for o in runs]
            loss = statistics.fmean(losses)
            grown = [r for r in runs if r.null_ranks]
            rows.append(
                [
                    name,
                    round(loss, 4),
                    round(statistics.stdev(losses), 4) if len(losses) > 1 else None,
                    f"{100 * (loss / statistics.fmean(full) - 1):+.1f} %" if full else None,
                    round(statistics.fmean(o.parameters for o in runs)),
                    _mean([o.mean_rank for o in runs if o.mean_rank is not None]),
                    _mean([o.mean_active for o in runs if o.mean_active is not None]),
                    _mean([statistics.fmean(o.null_ranks.values()) for o in grown]),
                    round(statistics.fmean(o.state_bytes for o in runs) / 1e6, 2),
                    round(statistics.fmean(o.peak_bytes for o in runs) / 1e6, 2),
                    round(statistics.fmean(o.cpu_seconds / o.steps for o in runs), 4),
                    round(statistics.fmean(o.steps for o in runs)),
                    round(statistics.fmean(o.flops / o.steps for o in runs) / 1e9, 3),
                ]
            )
        return {"title": f"At equal {self.budget}", "columns": list(_COLUMNS), "rows": rows}

    def markdown(self) -> str:
        """The table, and what could not run."""
        table = self.table()
        lines = [f"**{table['title']}**", "", f"| {' | '.join(table['columns'])} |", "|---" * len(_COLUMNS) + "|"]
        lines += [f"| {' | '.join('-' if cell is None else str(cell) for cell in row)} |" for row in table["rows"]]
        lines += [f"\n{name} did not run: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([*lines, ""])

    def write(self, out: Path) -> list[Path]:
        """Write result.json, the table as markdown, all runs and figures.

        Args:
            out: A folder; made if need be.

        Returns:
            The files.

        Raises:
            ImportError: matplotlib is not installed.
        """
        out.mkdir(parents=True, exist_ok=True)
        table, runs = out / f"comparison-{self.budget}.md", out / f"runs-{self.budget}.json"
        write_atomically(table, self.markdown().encode())
        write_atomically(runs, json.dumps([asdict(o) for o in self.outcomes], indent=1).encode())
        drawn = self.figures()
        pictures = [save_figure(figure, out / f"{name}-{self.budget}.png") for name, (figure, _) in drawn.items()]
        captions = [caption for _, caption in drawn.values()]
        result = {
            "title": f"InRank beside its competitors at equal {self.budget}",
            "summary": self.summary(),
            "tables": [self.table()],
            "figures": [{"file": p.name, "caption": c} for p, c in zip(pictures, captions, strict=True)],
        }
        write_atomically(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
        return [out / "result.json", table, runs, *pictures]

    def figures(self) -> dict[str, tuple[Any, str]]:
        """Figures and captions by name, of the first seed.

        Raises:
            ImportError: matplotlib is not installed.
        """
        seed = self.outcomes[0].seed
        runs = {o.variant: o for o in self.outcomes if o.seed == seed}
        made = {
            f"loss-{x}": (
                loss_figure({n: (o.curve[x][1:], o.curve["loss"][1:]) for n, o in runs.items()}, xlabel=label),
                f"Validation loss against {label}.",
            )
            for x, label in (("step", "optimizer steps"), ("cpu_seconds", "CPU seconds"))
        }
        grown = {
            f"{n} (untrained: {statistics.fmean(o.null_ranks.values()):.0f})": (o.curve["step"], o.curve["rank"])
            for n, o in runs.items()
            if o.null_ranks
        }
        if grown:
            full = max(o.full_rank for o in runs.values())
            figure = rank_figure(grown, full_rank=full, ylabel="mean rank")
            made["ranks"] = (figure, "Mean rank; in brackets what the same rule finds in layers that were not trained.")
        parts = {n: o.peak_parts for n, o in runs.items()}
        made["memory"] = (
            memory_figure(parts, measured={n: o.peak_bytes for n, o in runs.items()}),
            "Memory of a training step at the final ranks, by its parts, and the peak that the allocator recorded.",
        )
        return made

    def summary(self) -> str:
        """One line."""
        rows = {row[0]: row for row in self.table()["rows"]}
        leader, full = rows.get(_LEADER), rows.get("full rank")
        if leader is None or full is None:
            return f"{len(self.outcomes)} runs"
        return (
            f"InRank-Efficient: validation loss {leader[1]:.3f} against {full[1]:.3f} of full rank ({leader[3]}), mean "
            f"rank {leader[5]:g}, {leader[4] / full[4]:.0%} of the parameters, {leader[10] / full[10]:.0%} of the CPU "
            "time of a step"
        )


def compare(
    config: RunConfig,
    variants: Sequence[str] | None = None,
    seeds: Sequence[int] = (1113,),
    *,
    budget: str = "steps",
    jobs: int = 1,
    report: Callable[[float, str], None] | None = None,
) -> Comparison:
    """Train every variant with every seed.

    Args:
        config: What is the same for all; its method is the variants' own.
        variants: Names in `VARIANTS`; all by default. The ones that cannot run here are skipped with a reason, unless
            they were asked for.
        seeds: A run of each variant with each.
        budget: "steps", or "flops": every variant trains until it has spent what full rank spends in the
            configuration's steps.
        jobs: Runs at once, each in a process of its own with one thread.
        report: Called with the part that is done and a line about it.

    Raises:
        ValueError: A name or the budget is unknown.
        ImportError: A variant was asked for that needs something which is not installed.
    """
    chosen = list(VARIANTS if variants is None else variants)
    for name in chosen:
        if name not in VARIANTS:
            raise ValueError(f"no variant {name!r}; known: {', '.join(VARIANTS)}")
    if budget not in ("steps", "flops"):
        raise ValueError(f'budget must be "steps" or "flops", got {budget!r}')
    if not seeds or not chosen or jobs < 1:
        raise ValueError(f"a comparison needs variants, seeds and jobs, got {len(chosen)}, {len(seeds)} and {jobs}")
    say = report or (lambda done, line: None)
    skipped: dict[str, str] = {}
    if "GaLore" in chosen:
        try:
            import galore_torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except ImportError:
            skipped["GaLore"] = "galore-torch is not installed"
            chosen.remove("GaLore")
            if variants is not None:
                raise ImportError("the variant GaLore needs galore-torch: `pip install galore-torch`") from None
    configs = {
        (name, seed): dataclasses.replace(override(config, VARIANTS[name]), seed=seed)
        for name in chosen
        for seed in seeds
    }
    if budget == "flops":
        spent = _full_rank_flops(config)
        configs = {
            key: dataclasses.replace(value, trainer=dataclasses.replace(value.trainer, flops=spent))
            for key, value in configs.items()
        }
    first = {key: value for key, value in configs.items() if value.method.name not in _MATCHED}
    done: dict[tuple[str, int], Outcome] = {}
    _run_all(first, jobs, done, len(configs), say)
    later = {
        key: matched(value, [o for o in done.values() if o.seed == key[1]])
        for key, value in configs.items()
        if value.method.name in _MATCHED
    }
    _run_all(later, jobs, done, len(configs), say)
    return Comparison(budget, tuple(done[key] for key in configs), skipped)


def run_variant(
    name: str,
    config: RunConfig,
    folder: Path | None = None,
    texts: Texts | None = None,
    report: Callable[[float, str], None] | None = None,
) -> Outcome:
    """Train one variant and measure it.

    Args:
        name: What it is called.
        config: What and how.
        folder: See `Trainer`.
        texts: Already read.
        report: See `Trainer`.
    """
    trainer = Trainer(config, folder, texts, report)
    trainer.run()
    return measured(name, trainer)


def measured(name: str, trainer: Trainer) -> Outcome:
    """What a run came to, and the memory of a step; the trainer is not to be used for training afterwards.

    Args:
        name: Of the variant.
        trainer: At the end of its run.
    """
    counters = dataclasses.replace(trainer.counters)
    lines = [line for line in trainer.history if line["kind"] == "validation"]
    curve = {key: [float(line[key]) for line in lines] for key in ("step", "flops", "cpu_seconds", "loss")}
    ranks = trainer.ranks()
    if ranks:
        curve["rank"] = [statistics.fmean(line["ranks"].values()) for line in lines]
    null_ranks = trainer.controller.null_ranks if trainer.controller else {}
    layers = low_rank_layers(trainer.model)
    parameters = parameter_count(trainer.model)
    states = count_states(trainer.model, trainer.optimizer)
    projectors = sum(map(_projector_bytes, trainer.optimizer.state.values()))
    if trainer.controller:
        trainer.controller.close()  # the steps that measure memory are not training any more
    memory = measure_memory(trainer.bare_step, trainer.model, trainer.optimizer)
    return Outcome(
        variant=name,
        seed=trainer.config.seed,
        loss=lines[-1]["loss"],
        parameters=parameters,
        ranks=ranks,
        active={name: layer.active for name, layer in layers.items()},
        null_ranks=dict(null_ranks),
        full_rank=min((layer.full_rank for layer in layers.values()), default=0),
        state_bytes=states.total + projectors,
        peak_bytes=memory.measured + projectors,
        peak_parts={**memory.peak, "moments": memory.peak["moments"] + projectors},
        steps=counters.step,
        cpu_seconds=counters.cpu_seconds,
        flops=counters.flops,
        curve=curve,
    )


def _projector_bytes(state: Mapping[str, Any]) -> int:
    """Bytes of GaLore's projection of one parameter: inside an object, so that counting tensors passes over it."""
    matrix = getattr(state.get("projector"), "ortho_matrix", None)
    return 0 if matrix is None else int(matrix.numel() * matrix.element_size())


def matched(config: RunConfig, outcomes: Sequence[Outcome]) -> RunConfig:
    """A configuration of given rank at the mean number of directions that InRank-Efficient trained, buffers included.

    Other methods, and all where InRank-Efficient did not run, stay as they are.

    Args:
        config: Of any method.
        outcomes: Of the same seed.
    """
    leader = next((o for o in outcomes if o.variant == _LEADER and o.active), None)
    if leader is None or config.method.name not in _MATCHED:
        return config
    rank = max(1, round(statistics.fmean(leader.active.values())))
    return dataclasses.replace(config, method=dataclasses.replace(config.method, rank=rank))


def _run_all(
    configs: Mapping[tuple[str, int], RunConfig],
    jobs: int,
    done: dict[tuple[str, int], Outcome],
    total: int,
    say: Callable[[float, str], None],
) -> None:
    if jobs > 1 and len(configs) > 1:
        single = {
            key: dataclasses.replace(value, trainer=dataclasses.replace(value.trainer, threads=1))
            for key, value in configs.items()
        }
        # A fresh interpreter for each worker: torch does not survive a fork once it has threads.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {key: pool.submit(run_variant, key[0], value) for key, value in single.items()}
            for key, future in futures.items():
                done[key] = future.result()
                say(len(done) / total, f"{key[0]}: {done[key].loss:.3f}")
        return
    texts: Texts | None = None
    for key, value in configs.items():
        texts = texts or Texts.read(value)
        share = partial(_within, say, len(done), total, key[0])
        done[key] = run_variant(key[0], value, texts=texts, report=share)


def _within(say: Callable[[float, str], None], before: int, total: int, name: str, part: float, line: str) -> None:
    """Report a part of one run as a part of all."""
    say((before + part) / total, f"{name}: {line}")


def _full_rank_flops(config: RunConfig) -> float:
    from inrank.flops import gpt_cost
    from inrank.language.data import tokenizer_for

    shape = config.model.shape(tokenizer_for(config.data).vocabulary)
    tokens = config.trainer.sequences * config.model.context
    return float(config.trainer.steps * tokens * gpt_cost(shape).training)


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 1) if values else None
