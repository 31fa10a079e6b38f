"""Table, JSON and picture of claim_stability.py, from the histories of its runs."""

from __future__ import annotations

import io
import json
import math
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np
from claim_plausibility import SHARE, Describer, History, Verdict, judge
from numpy.typing import NDArray

from sfno_jax.training.rollout import PlausibilityLimits

__all__ = ["write"]

Run = tuple[dict[str, Any], History]
WINDOW = 48


def write(
    folder: Path, runs: list[Run], reference: History, describer: Describer, recipe: Any, settings: dict[str, Any]
) -> None:
    """Write claim_stability.json, .md and .png into a folder.

    Args:
        folder: Where to.
        runs: (result, history) of each arm and seed.
        reference: The solver's runs from the same states.
        describer: Knows the energy.
        recipe: What all arms shared.
        settings: Of the command line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # the solver's own largest value comes in its first hour; the other bands are the library's defaults
    bands = PlausibilityLimits(bound=1.5 * float(reference.maximum.max()))
    controls = _controls(reference)
    rows = [_row(result, history, reference, describer, recipe.marks, bands) for result, history in [*runs, *controls]]
    report = {
        **_result(rows, recipe),
        "setting": {**settings, **_plain(vars(recipe)), "window_hours": WINDOW, "bands": vars(bands), "share": SHARE},
        "machine": {"processor": platform.machine(), "jax": jax.__version__, "python": platform.python_version()},
        "solver": _solver(reference, describer, recipe.marks),
        "rows": rows,
    }
    (folder / "claim_stability.json").write_text(json.dumps(_plain(report), indent=None) + "\n")
    (folder / "claim_stability.md").write_text(_markdown(rows, report, recipe, bands))
    _draw(folder / "claim_stability.png", runs, reference, describer)


def _controls(reference: History) -> list[Run]:
    """The solver's runs, each compared with another one, and the initial state kept."""
    count = reference.maximum.shape[1]
    other = reference.select(np.roll(np.arange(count), 1))
    first = [slice(0, 1)] * 3
    frozen = History(
        np.repeat(reference.maximum[first[0]], len(reference.maximum), 0),
        np.repeat(reference.mean[first[0]], len(reference.mean), 0),
        np.repeat(reference.power[first[0]], len(reference.power), 0),
        np.zeros_like(reference.change),
    )
    blank: dict[str, Any] = {"seed": None, "parameters": None, "stages": None, "seconds": None}
    return [
        ({"arm": "another", "title": "solver, from another initial state", **blank}, other),
        ({"arm": "persistence", "title": "persistence (state after 1 h kept)", **blank}, frozen),
    ]


def _row(
    result: dict[str, Any],
    history: History,
    reference: History,
    describer: Describer,
    marks: tuple[int, ...],
    bands: PlausibilityLimits,
) -> dict[str, Any]:
    verdict = judge(history, reference, describer, marks, window=WINDOW, limits=bands)
    good, count = int(verdict.plausible.sum()), len(verdict.plausible)
    row = {key: value for key, value in result.items() if key not in ("relative_l2", "persistence_l2")}
    if "relative_l2" in result:
        row["l2"] = [_interval(values) for values in result["relative_l2"]]
        row["persistence_l2"] = [_interval(values) for values in result["persistence_l2"]]
    row |= {
        "rollouts": count,
        "bounded": int(verdict.bounded.sum()),
        "plausible": good,
        "plausible_interval": _wilson(good, count),
        "failures": verdict.failures,
        "maximum": _range(verdict.maximum),
        "drift": float(verdict.drift.max()),
        "variance": [_range(v) for v in verdict.variance],
        "energy": [_range(v) for v in verdict.energy],
        "tendency": [_range(v) for v in verdict.tendency],
        "spectrum": [_range(v) for v in verdict.spectrum],
        "mean_spectrum": verdict.mean_spectrum.tolist(),
        "per_rollout": _per_rollout(verdict),
    }
    return row


def _per_rollout(verdict: Verdict) -> dict[str, Any]:
    return {
        "maximum": verdict.maximum,
        "energy": verdict.energy,
        "spectrum": verdict.spectrum,
        "bounded": verdict.bounded,
        "plausible": verdict.plausible,
    }


def _solver(reference: History, describer: Describer, marks: tuple[int, ...]) -> dict[str, Any]:
    """What the reference itself does: a decay, relative to the first window."""
    windows = [slice(0, WINDOW), *(slice(mark - min(WINDOW, mark), mark) for mark in marks)]
    energy = np.array([describer.energy(reference)[w].mean() for w in windows])
    return {
        "hours": [WINDOW, *marks],
        "energy_of_first_window": energy / energy[0],
        "variance": [reference.variance[w].mean((0, 1)) for w in windows],
        "rms_change": [np.sqrt(reference.change[w].mean((0, 1))) for w in windows],
        "maximum": [reference.maximum[w].max() for w in windows],
    }


def _range(values: Any) -> list[float]:
    return [float(np.min(values)), float(np.median(values)), float(np.max(values))]


def _interval(values: list[float]) -> list[float]:
    """Mean over rollouts and its 95 % interval (normal)."""
    x = np.asarray(values, np.float64)
    half = 1.96 * x.std(ddof=1) / math.sqrt(len(x)) if len(x) > 1 else math.inf
    return [float(x.mean()), float(x.mean() - half), float(x.mean() + half)]


def _wilson(good: int, count: int, z: float = 1.96) -> list[float]:
    """95 % interval of a fraction (Wilson 1927)."""
    p, n = good / count, count
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [max(0.0, centre - half), min(1.0, centre + half)]


def _plain(value: Any) -> Any:
    """JSON values of five digits; what is not finite as a string."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value


# ------------------------------------------------------------------------------------------- table


def _markdown(rows: list[dict[str, Any]], report: dict[str, Any], recipe: Any, bands: PlausibilityLimits) -> str:
    solver, hours = report["solver"], recipe.marks[-1]
    head = [
        "# Long rollouts: generated by claim_stability.py, do not edit",
        "",
        f"Shallow water, {recipe.nlat} x {2 * recipe.nlat} Gauss grid, steps of 1 h, degrees below {recipe.lmax}; "
        f"{recipe.tests} rollouts of {hours} steps from unseen initial states, each beside the solver's own run from "
        f"the same state. Means over the {WINDOW} h before hours {', '.join(map(str, recipe.marks))} are compared.",
        "",
        f"Plausible: |x| <= {bands.bound:.3g} std at every step (1.5 times the solver's own largest); variance of each "
        f"channel and available energy within {bands.variance[0]:g} to {bands.variance[1]:g} times the solver's; "
        f"spectrum within a factor {bands.spectrum:g} (mean over the degrees that hold at least {SHARE:.0%} of the "
        f"solver's power); RMS change per step at least {bands.tendency:g} times the solver's (not frozen); area means "
        f"within {bands.mean_drift:g} std of where they began. At every mark, for every channel.",
        "",
        f"The solver itself decays: it is not forced. Of the available energy of its first {WINDOW} h "
        f"{_number(solver['energy_of_first_window'][-1])} is left at the end, of the RMS change per step of "
        f"geopotential, vorticity and divergence "
        f"{', '.join(_number(a / b) for a, b in zip(solver['rms_change'][-1], solver['rms_change'][0], strict=True))}.",
        "",
        "| | seed | parameters | training steps | CPU s | L2 at "
        + " / ".join(str(lead) for lead in recipe.leads)
        + " h | bounded | plausible (95 %) | max \\|x\\| | variance ratio | energy ratio at the end | spectrum factor "
        "(worst; of the mean spectrum at the end) | change per step, lowest ratio | what failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_line(row) for row in rows), "", _persistence(rows, recipe), ""])


def _result(rows: list[dict[str, Any]], recipe: Any) -> dict[str, Any]:
    """The claim in the form of a demo's result, which `bench` copies into RESULTS.md."""
    main = [row for row in rows if row["title"] == "SFNO"]
    plausible, rollouts = (sum(row[key] for row in main) for key in ("plausible", "rollouts"))
    columns = ["", "seed", "parameters", "steps (ahead)", "CPU s", f"L2 at {_slashed(recipe.leads)} h", "bounded"]
    columns += ["plausible (95 %)", "max |x|", "variance ratio", "energy ratio", "spectrum factor", "change", "failed"]
    return {
        "title": f"rollouts of {recipe.marks[-1]} steps",
        "summary": f"SFNO: {plausible} of {rollouts} rollouts from unseen states bounded and plausible to the end. "
        "What plausible means, and the picture: claim_stability.md, claim_stability.png.",
        "tables": [{"title": "Every arm and seed", "columns": columns, "rows": [_cells(row) for row in rows]}],
        "figures": [{"file": "claim_stability.png", "caption": "every rollout"}],
    }


def _slashed(values: Any) -> str:
    return " / ".join(map(str, values))


def _line(row: dict[str, Any]) -> str:
    return "| " + " | ".join(_cells(row)) + " |"


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["plausible_interval"]
    variance, spectrum = np.array(row["variance"]), np.array(row["spectrum"])
    steps = " + ".join(f"{count} ({ahead})" for ahead, count, _ in row["stages"]) if row["stages"] else ""
    failures = ", ".join(f"{name} {count}" for name, count in row["failures"].items())
    return [
        row["title"],
        "" if row["seed"] is None else str(row["seed"]),
        f"{row['parameters']:,}" if row["parameters"] else "",
        steps,
        f"{row['seconds']['cpu']:.0f}" if row["seconds"] else "",
        " / ".join(_number(mean) for mean, _, _ in row["l2"]) if "l2" in row else "",
        f"{row['bounded']}/{row['rollouts']}",
        f"{row['plausible']}/{row['rollouts']} ({low:.2f} to {high:.2f})",
        _span(row["maximum"][0], row["maximum"][2]),
        _span(variance[:, 0].min(), variance[:, 2].max()),
        _span(row["energy"][-1][0], row["energy"][-1][2]),
        f"{_number(spectrum[:, 2].max())}; {_number(row['mean_spectrum'][-1])}",
        _number(min(low for low, _, _ in row["tendency"])),
        failures or "nothing",
    ]


def _persistence(rows: list[dict[str, Any]], recipe: Any) -> str:
    for row in rows:
        if "persistence_l2" in row:
            values = " / ".join(_number(mean) for mean, _, _ in row["persistence_l2"])
            return f"Persistence has L2 {values} at {' / '.join(map(str, recipe.leads))} h."
    return ""


def _span(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:.0e}"


# ----------------------------------------------------------------------------------------- picture

_COLOURS = {"solver": "black", "sfno": "tab:blue", "fno-time": "tab:orange", "fno-parameters": "tab:red"}
_CEILING = 1e4


def _draw(path: Path, runs: list[Run], reference: History, describer: Describer) -> None:
    """Largest value, energy, spectrum at the end and change per step, of the main arms and the solver."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    shown = [("solver", "solver", reference)]
    shown += [(result["arm"], result["title"], history) for result, history in runs if result["arm"] in _COLOURS]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    hours = np.arange(1, len(reference.maximum) + 1)
    labelled: set[str] = set()
    for arm, title, history in shown:
        order = {"solver": 4, "sfno": 3}.get(arm, 2)
        style = {"color": _COLOURS[arm], "lw": 0.8 if order == 4 else 0.5, "alpha": 0.7, "zorder": order}
        label = None if arm in labelled else title
        labelled.add(arm)
        series = (history.maximum, describer.energy(history), np.sqrt(history.change[..., 1]))
        for axis, values in zip((axes[0, 0], axes[0, 1], axes[1, 1]), series, strict=True):
            axis.plot(hours[::4], _smooth(values, 24)[::4], **style)
        tail = history.power[-WINDOW:, :, 1, 1:].mean(0)
        with np.errstate(all="ignore"):
            degree = np.arange(1, tail.shape[-1] + 1)
            axes[1, 0].plot(degree, np.where(np.isfinite(tail), tail, np.nan).T, **style)
        axes[0, 0].plot([], [], color=_COLOURS[arm], label=label)
    names = (
        (axes[0, 0], "largest |x| [std], every rollout", "hour"),
        (axes[0, 1], "available energy [m4 s-4]", "hour"),
        (axes[1, 0], "vorticity power by degree, last 48 h", "degree l"),
        (axes[1, 1], "RMS change of vorticity per step [std]", "hour"),
    )
    for axis, name, unit in names:
        axis.set(title=name, xlabel=unit, yscale="log")
        axis.grid(alpha=0.3)
    energy = describer.energy(reference)
    axes[0, 0].set_ylim(0.5, _CEILING)
    axes[0, 1].set_ylim(energy.min() / 20, energy.max() * 200)
    axes[1, 0].set(xlim=(0.5, 10.5), ylim=(1e-6, 1e3))
    axes[1, 1].set_ylim(1e-3, 1e2)
    axes[0, 0].legend(loc="upper left", fontsize=8)
    with io.BytesIO() as buffer:
        figure.savefig(buffer, dpi=100)
        # a palette keeps the file small; "maximum coverage" does not lose the rarer hues
        picture = Image.open(buffer).convert("RGB")
        picture.quantize(128, method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    plt.close(figure)


def _smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running geometric mean along the hours; what is not finite ends the line."""
    with np.errstate(all="ignore"):
        logs = np.log(values)
    logs[~np.isfinite(logs)] = np.nan
    width = min(width, len(logs))
    padded = np.concatenate([logs[: width - 1], logs])
    return np.asarray(np.exp(np.lib.stride_tricks.sliding_window_view(padded, width, axis=0).mean(-1)))
