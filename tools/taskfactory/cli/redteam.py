"""`taskfactory redteam`: run the corpus of attacks against the grader on a task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskfactory.cli.turn import NO_WAIT, turn

if TYPE_CHECKING:
    from taskfactory.redteam.campaign import Outcome
    from taskfactory.redteam.corpus import Attack


@click.command(
    "redteam",
    epilog="Example: taskfactory redteam based-forward --attack side_stream_without_join --device cuda",
)
@click.argument("task", required=False)
@click.option("--attack", "names", multiple=True, help="Run this attack or control only; may be repeated.")
@click.option("--class", "kinds", multiple=True, help="Run this class of attacks only; may be repeated.")
@click.option("--list", "list_only", is_flag=True, help="List the corpus and run nothing.")
@click.option("--honest", type=click.Path(dir_okay=False, path_type=Path),
              help="The honest implementation to attack with [default: the bundle's or our own solution].")  # fmt: skip
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True,
              help="On the CPU nothing is timed, so no gain is computed.")  # fmt: skip
@click.option("--calls", type=click.IntRange(min=2), help="Timed calls per shape [default: as in a grading].")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True,
              help="Attacks at once; those that are timed or exhaust the machine still run alone.")  # fmt: skip
@click.option("--require-tier", type=click.Choice(["partial", "confined", "namespaced"]), default="confined",
              show_default=True, help="Refuse to run attacks in a weaker confinement.")  # fmt: skip
@click.option("--allow-unconfined", is_flag=True, help="Run them even where nothing confines them. Do not.")
@NO_WAIT
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
def command(
    task: str | None, names: tuple[str, ...], kinds: tuple[str, ...], list_only: bool, honest: Path | None,
    device: str, calls: int | None, jobs: int, require_tier: str, allow_unconfined: bool, no_wait: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Attack the grader on TASK (a task name, a spec file or a built bundle).

    Every attack of the corpus that applies is wrapped around an honest implementation and graded. Exits with 1 if one
    is not defeated: it gains more than delta, reaches something outside, ends in another status than it must, or is a
    control and does not pass.
    """
    from taskfactory.redteam.corpus import find, load_corpus

    corpus = load_corpus()
    chosen = [find(corpus, name) for name in names] or [a for a in corpus if not kinds or a.kind in kinds]
    if list_only:
        click.echo("\n".join(f"{a.name:32} {a.kind:12} {a.mechanism}" for a in chosen))
        return
    if task is None:
        raise click.UsageError("name a task, a spec file or a bundle, or use --list")
    tier = "unconfined" if allow_unconfined else require_tier
    options: dict[str, object] = {"calls": calls, "require_tier": tier}
    outcomes = _attacked(task, chosen, honest, device, jobs, options, no_wait, as_json)
    sys.exit(0 if all(o.verdict in ("held", "skipped") for o in outcomes) else 1)


def _attacked(
    name: str, chosen: list[Attack], honest: Path | None, device: str, jobs: int, options: dict[str, object],
    no_wait: bool, as_json: bool,
) -> list[Outcome]:  # fmt: skip
    import dataclasses

    from taskfactory.grader.result import dumps
    from taskfactory.grader.supervisor import resolve_device
    from taskfactory.grading import load, task_directory
    from taskfactory.redteam.campaign import run_campaign
    from taskfactory.redteam.submission import honest_source

    device = resolve_device(device)
    with task_directory(name) as directory:
        facts = load(directory)
        source = honest_source(facts, Path(name) if Path(name).is_dir() else None, honest)
        applicable = [attack for attack in chosen if attack.applicable(facts.name, facts.compare)]
        with turn(device, no_wait):
            against, outcomes = run_campaign(
                applicable, directory, facts, source, device, _show_progress, jobs, **options
            )
    if as_json:
        record = {
            "task": facts.name, "device": device, "honest_score": against.score, "metric": facts.metric,
            "tier": against.confinement["tier"], "environment": against.environment,
            "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
        }  # fmt: skip
        click.echo(dumps(record), nl=False)
    else:
        click.echo(table(facts.name, device, outcomes))
    return outcomes


def _show_progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{done + 1}/{total} {name}", nl=False, err=True)
        if done + 1 == total:
            click.echo("\r\x1b[K", nl=False, err=True)


def table(task: str, device: str, outcomes: list[Outcome]) -> str:
    """The outcomes as aligned text, the worst news last."""
    lines = [f"{task} on {device}", ""]
    for outcome in outcomes:
        gain = "" if outcome.gain is None else f"{outcome.gain:+.1%} (allowed {outcome.allowance:.1%})"
        title = f"{'control' if outcome.control else outcome.kind}/{outcome.name}"
        lines.append(f"{title:44} {outcome.verdict:8} {outcome.status or outcome.message:22} {gain}".rstrip())
        if outcome.verdict in ("broken", "open"):
            expected = " or ".join(outcome.expected)
            lines += [f"    expected {expected}; {outcome.message}".rstrip("; ")]
            lines += [f"    {breach}" for breach in outcome.breaches]
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("held", "skipped", "open", "broken")}
    return "\n".join([*lines, "", ", ".join(f"{count} {verdict}" for verdict, count in counts.items())])
