"""Draw the measurements of `adversary.py` and `repeat.py` as SVG files, from their JSON alone.

    python bench/plots.py FILE.json FOLDER

Needs matplotlib, which only development does. The same JSON gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5a00", "#6a4c93", "#444444", "#00838f", "#b8860b")


def draw_adversary(record: dict[str, Any], folder: Path) -> list[Path]:
    """adversary-strategies.svg, adversary-attacks.svg (T against the truth) and adversary-liar.svg."""
    rows = [row for row in record["rows"] if row["t_ms"] is not None and row["truth_ms"] > 0]
    strategies = [row for row in rows if row["group"] == "launch strategies" and row["strategy"] != "liar"]
    attacks = [row for row in rows if row["group"] != "launch strategies"]
    drawn = []
    for name, chosen in (("strategies", strategies), ("attacks", attacks)):
        if chosen:
            drawn.append(_ratios(chosen, _title(record), folder / f"adversary-{name}.svg"))
    liars = [row for row in rows if row["strategy"] == "liar"]
    if liars:
        drawn.append(_liars(liars, _title(record), folder / "adversary-liar.svg"))
    return drawn


def draw_repeat(record: dict[str, Any], folder: Path) -> list[Path]:
    """repeat.svg: every grading's score over its task's mean."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    tasks = record["tasks"]
    for k, task in enumerate(tasks.values()):
        scores = [score for score in task["scores"] if score is not None]
        if not scores:
            continue
        mean = sum(scores) / len(scores)
        offsets = [k + 0.5 * (j / max(1, len(scores) - 1) - 0.5) for j in range(len(scores))]
        axes.plot(offsets, [100 * (score / mean - 1) for score in scores], "o", ms=4, color=COLOURS[k % len(COLOURS)])
        if task["cv"] is not None:
            axes.annotate(f"CV {task['cv']:.2%}", (k, 0), (0, -34), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(0, color="#999999", lw=0.8, zorder=0)
    axes.set_xticks(range(len(tasks)), [_short(name) for name in tasks], fontsize=8)
    axes.set_ylabel("score over the mean, %")
    axes.set_title(_title(record), fontsize=9)
    return [_save(figure, folder / "repeat.svg")]


def _ratios(rows: list[dict[str, Any]], title: str, path: Path) -> Path:
    """One panel a kind of launch: T over truth; open circles where outputs were wrong, so that nothing was scored."""
    pyplot = _pyplot()
    names = dict.fromkeys(row["strategy"] for row in rows)
    figure, panels = pyplot.subplots(-(-len(names) // 4), 4, figsize=(11, 2.6 * -(-len(names) // 4)), sharex=True)
    for panel in panels.flat:
        panel.set_visible(False)
    for name, panel in zip(names, panels.flat, strict=False):
        panel.set_visible(True)
        mine = [row for row in rows if row["strategy"] == name]
        for k, level in enumerate(dict.fromkeys(row["level"] for row in mine)):
            line = sorted((row for row in mine if row["level"] == level), key=lambda row: row["truth_ms"])
            colour = COLOURS[k % len(COLOURS)]
            truths = [row["truth_ms"] for row in line]
            ratios = [row["t_ms"] / row["truth_ms"] for row in line]
            panel.plot(truths, ratios, "-", lw=0.9, color=colour, label=f"{level:g}" if level else None)
            for row, ratio in zip(line, ratios, strict=True):
                filled = colour if row["status"] == "passed" else "white"
                panel.plot(row["truth_ms"], ratio, "o", ms=4, color=colour, mfc=filled)
        lowest: dict[float, float] = {}
        for row in mine:
            edge = 1 - row["delta_ms"] / row["truth_ms"]
            lowest[row["truth_ms"]] = min(edge, lowest.get(row["truth_ms"], edge))
        panel.fill_between(sorted(lowest), [lowest[t] for t in sorted(lowest)], 1, color="#dddddd", lw=0)
        panel.set_xscale("log")
        below = min(row["t_ms"] / row["truth_ms"] for row in mine)
        panel.set_ylim(min(0.5, below - 0.05), 1.5)  # a gain is never cut off; what is above is merely slow
        panel.set_title(name.replace("_", " "), fontsize=8)
        panel.tick_params(labelsize=7)
        if any(row["level"] for row in mine):
            panel.legend(fontsize=6, ncol=2)
    figure.supxlabel("true duration, ms", fontsize=9)
    figure.supylabel("T / truth", fontsize=9)
    caption = f"{title}; grey: within delta below the truth; open: wrong outputs, not scored; above 1.5: not shown"
    figure.suptitle(caption, fontsize=9)
    return _save(figure, path)


def _liars(rows: list[dict[str, Any]], title: str, path: Path) -> Path:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 3.8))
    for k, passes in enumerate(sorted({row["passes"] for row in rows})):
        line = sorted((row for row in rows if row["passes"] == passes), key=lambda row: row["level"])
        label = f"{line[0]['truth_ms']:.2f} ms, delta {max(r['delta_ms'] / r['truth_ms'] for r in line):.1%}"
        accepted = [row["accepted_ms"] / row["truth_ms"] for row in line]
        axes.plot([row["level"] for row in line], accepted, "o-", ms=4, lw=0.9, color=COLOURS[k], label=label)
    axes.plot([0, 1], [0, 1], ":", color="#999999", lw=0.9)
    axes.set_xlabel("share of the time that is claimed")
    axes.set_ylabel("accepted time / truth")
    axes.set_ylim(0, 1.2)
    axes.legend(fontsize=7)
    axes.set_title(title, fontsize=9)
    return _save(figure, path)


def _title(record: dict[str, Any]) -> str:
    environment = record.get("environment") or {}
    return f"{environment.get('device', 'unknown device')}, commit {record.get('commit') or 'unknown'}"


def _short(name: str) -> str:
    """A task's name on two lines."""
    head, _, rest = name.partition("-")
    return f"{head}\n{rest}"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "taskfactory", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    _pyplot().close(figure)
    text = path.read_text("utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    return path


def main() -> int:
    """Draw one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    record = json.loads(arguments.file.read_text("utf-8"))
    draw = {"adversary": draw_adversary, "repeat": draw_repeat}[record["kind"]]
    for path in draw(record, arguments.folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
