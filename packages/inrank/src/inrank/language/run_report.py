"""A run's log as a table, a page and figures."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inrank._files import write_atomically
from inrank.language.baselines import build_model
from inrank.language.presets import RunConfig
from inrank.language.run_folder import RunFolder
from inrank.null_model import null_ranks
from inrank.plotting import loss_figure, rank_figure, save_figure

__all__ = ["RunReport"]


@dataclass(frozen=True)
class RunReport:
    """What a run has come to.

    Attributes:
        config: Of the run.
        log: Its log.
        null_ranks: Of the same rule without training, where ranks grow.
    """

    config: RunConfig
    log: list[dict[str, Any]]
    null_ranks: dict[str, int]

    @classmethod
    def of(cls, run: Path) -> RunReport:
        """Read a run.

        Raises:
            FileNotFoundError: There is no run, or it has not been validated yet.
        """
        folder = RunFolder(run)
        config, log = folder.config(), folder.read_log()
        if not any(line["kind"] == "validation" for line in log):
            raise FileNotFoundError(f"{run} has no validation in its log yet: go on with `inrank resume {run}`")
        nulls = dict(null_ranks(build_model(config, folder.tokenizer().vocabulary))) if config.method.grows else {}
        return cls(config, log, nulls)

    @property
    def validations(self) -> list[dict[str, Any]]:
        """Lines of the log about validations."""
        return [line for line in self.log if line["kind"] == "validation"]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table."""
        return ("step", "validation loss", "CPU s", "parameters", "mean rank")

    @property
    def rows(self) -> list[list[Any]]:
        """A row for each validation."""
        return [[v["step"], v["loss"], v["cpu_seconds"], v["parameters"], _mean(v["ranks"])] for v in self.validations]

    @property
    def summary(self) -> str:
        """One line."""
        last = self.validations[-1]
        return f"{self.config.method.name}: validation loss {last['loss']:.4f} after {last['step']} steps"

    @property
    def note(self) -> str:
        """What the ranks mean."""
        if not self.null_ranks:
            return ""
        ranks = ", ".join(
            f"{name} {rank} ({self.null_ranks.get(name, '-')})" for name, rank in self.validations[-1]["ranks"].items()
        )
        return f"ranks, and in brackets what the same rule finds without training: {ranks}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "summary": self.summary,
            "config": self.config.to_dict(),
            "validations": self.validations,
            "null_ranks": self.null_ranks,
            "events": [line for line in self.log if line["kind"] in ("rank", "finalize")],
        }

    def write(self, out: Path) -> list[Path]:
        """Write report.md and its figures.

        Raises:
            ImportError: matplotlib is not installed.
        """
        out.mkdir(parents=True, exist_ok=True)
        curves = {}
        for kind, name in (("step", "training"), ("validation", "validation")):
            chosen = [line for line in self.log if line["kind"] == kind and line["step"] > 0]
            if chosen:
                curves[name] = ([line["step"] for line in chosen], [line["loss"] for line in chosen])
        files = []
        if curves:
            figure = loss_figure(curves, xlabel="optimizer step", ylabel="loss [nats per token]")
            files.append(save_figure(figure, out / "loss.png"))
        steps = [line["step"] for line in self.validations]
        ranks = {n: (steps, [line["ranks"][n] for line in self.validations]) for n in self.validations[-1]["ranks"]}
        if ranks:
            nulls = statistics.fmean(self.null_ranks.values()) if self.null_ranks else None
            files.append(save_figure(rank_figure(ranks, null_rank=nulls), out / "ranks.png"))
        lines = [f"# {self.summary}", "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in self.rows]
        lines += ["", self.note, "", *(f"![{file.stem}]({file.name})" for file in files)]
        write_atomically(out / "report.md", ("\n".join(lines) + "\n").encode())
        return [out / "report.md", *files]


def _mean(ranks: dict[str, int]) -> float | None:
    return statistics.fmean(ranks.values()) if ranks else None


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
