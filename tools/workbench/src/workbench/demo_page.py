"""out/index.html: one page with every demo's tables and pictures, readable without a server."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from urllib.parse import quote

from workbench.demo_result import Cell, DemoResult, ResultError, Table, read_result
from workbench.demos import LOG, STATUS, DemoRun

__all__ = ["write_page"]

_LOG_TAIL = 60  # lines of a failed demo's log that the page shows

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbf9; --card: #ffffff; --ink: #1c1e21; --dim: #6a6f76;
  --line: #e3e2dd; --good: #1a7f4b; --bad: #b3261e; --zebra: #f4f4f0; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --card: #1d2024; --ink: #e6e6e3;
  --dim: #9aa0a8; --line: #33373d; --good: #5fd39a; --bad: #ff8a80; --zebra: #22262b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.3rem; margin: 0; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0 2rem; }
a { color: inherit; } .dim { color: var(--dim); font-size: .9rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.25rem 1.5rem 1.5rem; margin: 0 0 1.5rem; }
.passed { color: var(--good); } .failed, .stopped { color: var(--bad); }
.summary { margin: .5rem 0 0; font-size: 1.05rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } td.number, th.number { text-align: right; }
tbody tr:nth-child(even) { background: var(--zebra); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 1.25rem; margin-top: 1.5rem; }
figure { margin: 0; } figcaption { color: var(--dim); font-size: .9rem; margin-top: .4rem; }
img { width: 100%; height: auto; border-radius: 6px; border: 1px solid var(--line);
  background: #fff; }
pre { overflow-x: auto; background: var(--zebra); padding: 1rem; border-radius: 6px;
  font-size: .82rem; line-height: 1.4; }
"""


def write_page(out: Path) -> Path:
    """Writes ``out/index.html`` over all demos that have run into ``out``; returns its path."""
    runs = [_read_status(file) for file in sorted(out.glob(f"*/{STATUS}"))]
    links = "".join(f'<a class="{escape(run.state)}" href="#{escape(run.name)}">{escape(run.name)}</a>' for run in runs)
    passed = sum(run.state == "passed" for run in runs)
    body = "\n".join(_article(run, out / run.name) for run in runs)
    page = out / "index.html"
    page.write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Demos</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Demos</h1>\n"
        f'<div class="dim">{passed} of {len(runs)} passed</div>\n<nav>{links}</nav>\n'
        f"{body}\n</body>\n</html>\n",
        encoding="utf-8",
    )
    return page


def _read_status(file: Path) -> DemoRun:
    return DemoRun(**json.loads(file.read_text(encoding="utf-8")))


def _article(run: DemoRun, folder: Path) -> str:
    result: DemoResult | None = None
    if run.state == "passed":
        try:
            result = read_result(folder)
        except ResultError as error:
            run.state, run.line = "failed", str(error)
    title = result.title if result else run.name
    parts = [
        f'<article id="{escape(run.name)}">',
        f'<h2>{escape(title)}</h2>\n<div class="dim">{escape(run.name)} · '
        f'<span class="{escape(run.state)}">{escape(run.state)}</span> · '
        f"{run.seconds:.1f} s · {escape(run.finished)}</div>",
        f'<p class="summary">{escape(run.line)}</p>',
    ]
    if result:
        parts += [_table(table) for table in result.tables]
        pictures = "\n".join(
            f'<figure><a href="{_link(run, figure.file)}"><img src="{_link(run, figure.file)}" '
            f'alt="{escape(figure.caption)}" loading="lazy"></a>'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
            for figure in result.figures
        )
        parts.append(f'<div class="figures">{pictures}</div>' if pictures else "")
    else:
        parts.append(_log(run, folder / LOG))
    return "\n".join([*filter(None, parts), "</article>"])


def _link(run: DemoRun, file: str) -> str:
    return escape(quote(f"{run.name}/{file}"))


def _log(run: DemoRun, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    if not lines:
        return '<p class="dim">It wrote nothing to its log.</p>'
    tail = escape("\n".join(lines[-_LOG_TAIL:]))
    return f'<h3>The end of <a href="{_link(run, LOG)}">its log</a></h3>\n<pre>{tail}</pre>'


def _table(table: Table) -> str:
    numeric = [bool(table.rows) and all(_is_number(row[i]) for row in table.rows) for i in range(len(table.columns))]
    classes = [' class="number"' if flag else "" for flag in numeric]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(classes, table.columns, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    return escape(f"{cell:.4g}" if isinstance(cell, float) else cell)
