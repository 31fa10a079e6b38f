"""`train`, `resume`, `compare`, `generate`, `report` and `merge`: language models from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inrank.commands.console import AsJson, BadInput, Out, guarded, notice, progress, show

if TYPE_CHECKING:
    from inrank.language.training import Trainer

__all__ = ["compare", "generate", "merge", "report", "resume", "train"]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model, or a hub id.")]
Preset = Annotated[
    str,
    typer.Option("--preset", "-p", help="tiny, demo, gpt2-small, gpt2-medium, gpt2-large, or the path of a TOML file."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as trainer.steps=100; may be repeated."),
]


@guarded
def train(
    preset: Preset = "tiny",
    method: Annotated[
        str | None, typer.Option(help="full-rank, inrank-efficient, inrank-full, fixed-rank, lora or galore.")
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Local UTF-8 text in place of the preset's; may be repeated.")
    ] = None,
    settings: Settings = None,
    out: Out = Path("out/train"),
    as_json: AsJson = False,
) -> None:
    """Train a language model; a killed run goes on exactly with `inrank resume` (but for the method galore).

    The folder gets config.json, log.jsonl and checkpoints. Every setting of the preset can be changed with --set; an
    unknown key is an error that names the nearest one. The GPT-2 presets are the paper's recipe on WikiText-103, which
    must lie in a local folder: --set 'data.path=["wikitext-103-raw"]'.

    Example: inrank train --preset tiny --method inrank-full --set trainer.steps=200 --out out/full
    """
    from inrank.language.presets import load_config
    from inrank.language.run_folder import RunFolder
    from inrank.language.training import Trainer

    changes = [] if method is None else [f"method.name={method}"]
    changes += settings or []
    if text:
        changes += ["data.source=text", f"data.path={json.dumps([str(path) for path in text])}"]
    config = load_config(preset, changes)
    if RunFolder(out).latest() is not None:
        raise BadInput(f"{out} holds a run already: go on with `inrank resume {out}`, or choose another --out")
    if config.method.name == "galore":
        notice("the state of galore-torch cannot be saved: a galore run that is stopped cannot be resumed")
    with progress(f"training ({config.method.name})", 1.0) as done:
        trainer = Trainer(config, out, report=lambda part, line: done(part))
        _run(trainer, out)
    _show_trained(trainer, out, as_json)


@guarded
def resume(run: Run, as_json: AsJson = False) -> None:
    """Go on with a run from its newest checkpoint, bit for bit as if it had not been stopped.

    Example: inrank resume out/train
    """
    from inrank.language.run_folder import RunFolder
    from inrank.language.training import Trainer

    config = RunFolder(run).config()
    with progress(f"training ({config.method.name})", 1.0) as done:
        trainer = Trainer(config, run, report=lambda part, line: done(part))
        trainer.resume()
        if trainer.progress >= 1.0:
            notice(f"{run} is at its end, after {trainer.counters.step} steps: nothing is left to train")
        _run(trainer, run)
    _show_trained(trainer, run, as_json)


def _run(trainer: Trainer, folder: Path) -> None:
    """Train to the end; Ctrl-C says how to go on."""
    try:
        trainer.run()
    except KeyboardInterrupt:
        if trainer.config.method.name != "galore":
            notice(
                f"stopped at step {trainer.counters.step}; `inrank resume {folder}` goes on from the last checkpoint"
            )
        raise


def _show_trained(trainer: Trainer, folder: Path, as_json: bool) -> None:
    from inrank.language.gpt import parameter_count

    losses = [line["loss"] for line in trainer.history if line["kind"] == "validation"]
    controller = trainer.controller
    result: dict[str, Any] = {
        "run": str(folder),
        "method": trainer.config.method.name,
        "steps": trainer.counters.step,
        "validation_loss": losses[-1],
        "parameters": parameter_count(trainer.model),
        "cpu_seconds": trainer.counters.cpu_seconds,
    }
    if controller is None:
        show({**result, "ranks": trainer.ranks()}, as_json, title="Trained", files=[folder / "log.jsonl"])
        return
    table = controller.report()
    rows = [[layer.name, layer.rank, layer.null_rank, layer.full_rank, layer.ratio] for layer in table.layers]
    show(
        {**result, "ranks": table.to_dict()},
        as_json,
        columns=("layer", "rank", "rank without training", "full", "explained"),
        rows=rows,
        title=f"validation loss {losses[-1]:.4f} after {result['steps']} steps, {result['parameters']:,} parameters",
        files=[folder / "log.jsonl"],
    )


@guarded
def compare(
    preset: Preset = "tiny",
    variants: Annotated[
        list[str] | None, typer.Option("--variant", help="Only these; may be repeated [default: all].")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each variant, with seeds of their own.")] = 1,
    budget: Annotated[str, typer.Option(help="What is equal for all: steps, or flops.")] = "steps",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, one thread each.")] = 1,
    settings: Settings = None,
    out: Out = Path("out/compare"),
    as_json: AsJson = False,
) -> None:
    """Train InRank and its competitors on the same data, and put them into one table.

    Full rank, InRank-Efficient, the same by the official release's rules, InRank with W_0 kept, and, with as many
    directions as InRank-Efficient trained, fixed rank, LoRA from scratch and GaLore (where galore-torch is installed).
    Beside each rank stands the one that the same rule finds without training. Writes `comparison-*.md`, `runs-*.json`,
    result.json and figures.

    Example: inrank compare --preset tiny --seeds 3 --jobs 2 --out out/compare
    """
    from inrank.language.comparison import compare as run
    from inrank.language.presets import load_config

    config = load_config(preset, settings or ())
    with progress("comparing", 1.0) as done:
        result = run(
            config,
            variants,
            [config.seed + number for number in range(seeds)],
            budget=budget,
            jobs=jobs,
            report=lambda part, line: done(part),
        )
    table, files = result.table(), result.write(out)
    show(
        {"preset": preset, "budget": budget, "seeds": seeds, "table": table, "skipped": dict(result.skipped)},
        as_json,
        columns=table["columns"],
        rows=table["rows"],
        title=f"{preset}, {table['title'].lower()}, {seeds} seed{'s' if seeds > 1 else ''}",
        note="".join(f"{name} did not run: {reason}\n" for name, reason in result.skipped.items()),
        files=files,
    )


@guarded
def generate(
    model: Model,
    prompt: Annotated[str, typer.Option(help="What is continued.")] = "The state of the Union",
    tokens: Annotated[int, typer.Option(help="How many to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from the likeliest only; 0 is from all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same text.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a trained model.

    Example: inrank generate out/train --prompt "My fellow citizens" --tokens 300
    """
    from inrank.language.language_model import LanguageModel

    written = LanguageModel.from_pretrained(model).generate(
        prompt, tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    if as_json:
        show({"model": model, "prompt": prompt, "seed": seed, "text": written}, True)
    else:
        typer.echo(written)


@guarded
def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", file_okay=False, help="Folder of the report [default: the run's].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a run has come to: losses, ranks and the null model's beside them; as report.md with figures.

    Example: inrank report out/train
    """
    from inrank.language.run_report import RunReport

    made = RunReport.of(run)
    files = made.write(out or run)
    show(
        made.to_dict(),
        as_json,
        columns=made.columns,
        rows=made.rows,
        title=made.summary,
        note=made.note,
        files=files,
    )


@guarded
def merge(
    model: Model,
    out: Out = Path("out/merged"),
    as_json: AsJson = False,
) -> None:
    """Save a trained model with dense weights, W = W_0 + U V in float32: the same function, no factors.

    MODEL is the folder of a language-model run. (`inrank.merge(model)` does the same for any model in Python.)

    Example: inrank merge out/train --out out/dense
    """
    from inrank.language.gpt import parameter_count
    from inrank.language.language_model import LanguageModel
    from inrank.wrapping import low_rank_layers

    opened = LanguageModel.from_pretrained(model)
    before = parameter_count(opened.model)
    if not low_rank_layers(opened.model):
        notice(f"{model} has no low-rank layers; it is saved as it is")
    opened.merge().save_pretrained(out)
    result = {"model": model, "parameters_before": before, "parameters": parameter_count(opened.model)}
    show(result, as_json, title="Merged", files=sorted(path for path in out.rglob("*") if path.is_file()))
