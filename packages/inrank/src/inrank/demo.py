"""The package in two minutes: what the paper observes, what its method does with it, and the theory behind.

A small GPT learns to write State of the Union addresses, byte by byte: with dense weights, while the singular values
of its cumulative updates D_t = W_t - W_0 are recorded; with InRank, whose ranks grow as these spectra ask; and with
ranks that are fixed from the start. Everything is seeded; only times depend on the machine.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inrank._files import write_atomically
from inrank.language.comparison import VARIANTS, Comparison, Outcome, matched, measured, run_variant
from inrank.language.generation import generate
from inrank.language.presets import RunConfig, load_config, override
from inrank.language.step_timing import time_steps
from inrank.language.training import Texts, Trainer
from inrank.plotting import rank_figure, save_figure, spectrum_figure, theory_figure
from inrank.spectrum_history import SpectrumHistory
from inrank.spectrum_tracker import SpectrumTracker

__all__ = ["DemoSettings", "main"]

_LAYERS = ["mlp.fc1", "mlp.fc2"]


@dataclass(frozen=True)
class DemoSettings:
    """How much of everything; the defaults take a good minute on two cores.

    Attributes:
        steps: Optimizer steps of each network.
        every: Steps between recorded spectra.
        variants: What is trained beside the dense network; see `inrank.language.comparison.VARIANTS`.
        width: Of the model whose steps are timed: at the small one's, low rank has nothing to save.
        overrides: Other settings of the preset "demo".
    """

    steps: int = 100
    every: int = 10
    variants: tuple[str, ...] = ("InRank-Efficient", "InRank (W_0 kept)", "fixed rank")
    width: int = 512
    overrides: tuple[str, ...] = ()


def main(out: Path, settings: DemoSettings | None = None) -> None:
    """Run the demo.

    Args:
        out: Folder for the pictures and result.json.
        settings: How much of everything.
    """
    settings = settings or DemoSettings()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    figures: list[dict[str, str]] = []

    print("theory: singular modes of a three-layer linear network, learned one after another", flush=True)
    _save(theory_figure(), out / "theory.png", figures, "The paper's theory, exact: with a small orthogonal start the "
          "singular modes of the target are learned one after another; at gain 1 all unused ones move as well, and the "
          "update is not of low rank.")  # fmt: skip

    config = load_config("demo", [f"trainer.steps={settings.steps}", *settings.overrides])
    print("reading 233 State of the Union addresses: before 2000 to learn from, later ones to validate", flush=True)
    texts = Texts.read(config)
    print(f"full rank: {settings.steps} steps, recording the spectra of W and of its update D", flush=True)
    trainer, history = _full_rank(config, texts, settings)
    outcomes = [measured("full rank", trainer)]
    _spectra(history, out, figures)
    for name in settings.variants:
        variant = matched(override(config, VARIANTS[name]), outcomes)
        print(f"{name}: {settings.steps} steps", flush=True)
        outcomes.append(run_variant(name, variant, texts=texts))
    print(f"timing training steps at width {settings.width}, rank a third of it", flush=True)
    times = time_steps(settings.width, layers=1, steps=3)
    print("drawing", flush=True)
    comparison = Comparison("steps", tuple(outcomes), {})
    for name, (figure, caption) in comparison.figures().items():
        _save(figure, out / f"{name}.png", figures, caption)
    sample = generate(trainer.model, texts.tokenizer, "The state of the Union ", 120, temperature=0.7, seed=1)
    result = {
        "title": "InRank: training with ranks that grow as needed",
        "summary": f"{comparison.summary()}; {_growth(history)}",
        "tables": [
            {**comparison.table(), "title": f"A small GPT after {settings.steps} steps of real English"},
            _rank_table(history, outcomes),
            {
                "title": f"Cost of a training step at width {settings.width}, best of three taken in turns",
                "columns": ["linear layers", "rank", "CPU s", "CPU / full", "weights, gradients, moments / full"],
                "rows": [
                    [t.name, t.rank, round(t.seconds, 3), round(t.ratio, 2), round(t.state_ratio, 2)] for t in times
                ],
            },
            {"title": "What the dense network writes by then", "columns": ["text"], "rows": [[sample]]},
        ],
        "figures": figures,
    }
    write_atomically(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    print(f"done in {time.perf_counter() - began:.0f} s: {result['summary']}", flush=True)


def _full_rank(config: RunConfig, texts: Texts, settings: DemoSettings) -> tuple[Trainer, SpectrumHistory]:
    dense = override(config, VARIANTS["full rank"])
    trainer = Trainer(dense, texts=texts, report=lambda done, line: _track(tracker))
    tracker = SpectrumTracker(trainer.model, include=_LAYERS, every=settings.every)
    trainer.run()
    return trainer, tracker.history


def _track(tracker: SpectrumTracker) -> None:
    tracker.step()


def _spectra(history: SpectrumHistory, out: Path, figures: list[dict[str, str]]) -> None:
    for kind, what in (("update", "D = W_t - W_0"), ("weight", "W_t")):
        shown = {name: history.spectra(name, kind) for name in history.layers}
        figure = spectrum_figure(shown, ranks=history.ranks(kind),
            shown=16, columns=2, ylabel=f"singular values of {what}",
                                 title=f"Singular values of {what} while a dense GPT learns")  # fmt: skip
        _save(figure, out / f"spectrum-{kind}.png", figures, f"Singular values of {what}, and the rank that holds 90 % "
              "of its energy: the update's is low and grows, the weight's is neither.")  # fmt: skip
    ranks = {f"D, {name}": (history.steps, curve) for name, curve in history.ranks("update").items()}
    ranks |= {f"W, {name}": (history.steps, curve) for name, curve in history.ranks("weight").items()}
    figure = rank_figure(ranks, full_rank=history.of(history.layers[0])[0].full_rank, ylabel="rank of 90 % energy")
    _save(
        figure, out / "spectrum-ranks.png", figures, "The rank of the update D starts low and grows; that of W falls."
    )


def _rank_table(history: SpectrumHistory, outcomes: list[Outcome]) -> dict[str, Any]:
    update, weight = history.ranks("update"), history.ranks("weight")
    grown = {o.variant: o for o in outcomes if o.null_ranks}
    rows = [
        [
            name,
            history.of(name)[0].full_rank,
            int(update[name][0]),
            int(update[name][-1]),
            int(weight[name][-1]),
            *(value for o in grown.values() for value in (o.ranks[name], o.null_ranks[name])),
        ]
        for name in history.layers
    ]
    columns = ["layer", "full rank", f"D at step {history.steps[0]}", f"D at step {history.steps[-1]}", "W at the end"]
    columns += [column for name in grown for column in (f"rank of {name}", "the same rule without training")]
    return {"title": "Ranks: 90 % energy in the dense network, and what InRank chose", "columns": columns, "rows": rows}


def _growth(history: SpectrumHistory) -> str:
    update, weight = history.ranks("update").values(), history.ranks("weight").values()
    first, last = (statistics.fmean(float(curve[at]) for curve in update) for at in (0, -1))
    of_weight = statistics.fmean(float(curve[-1]) for curve in weight)
    return f"in the dense network the rank of D grows from {first:.0f} to {last:.0f}, that of W is {of_weight:.0f}"


def _save(figure: Any, path: Path, figures: list[dict[str, str]], caption: str) -> None:
    save_figure(figure, path, dpi=90)
    figures.append({"file": path.name, "caption": caption})
