"""The `taskfactory` command: a table of subcommands, each imported only when it runs.

The one-line help texts live in the table, so that `--help` imports neither pydantic nor torch nor jinja2.
Shell completion is click's: `eval "$(_TASKFACTORY_COMPLETE=bash_source taskfactory)"` (or `zsh_source`,
`fish_source`).
"""

from __future__ import annotations

import importlib
import io
import sys
import traceback
from typing import Any

import click

from taskfactory import __version__
from taskfactory.errors import SpecError, TaskfactoryError
from taskfactory.findings import color_wanted, format_text

# name -> (module:attribute, one line of help); the order is that of an author's day.
COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("taskfactory.cli.list:command", "List the tasks, with metric, shapes and state."),
    "new": ("taskfactory.cli.new:command", "Write a new spec that validates and explains itself."),
    "validate": ("taskfactory.cli.validate:command", "Check specs and say what is wrong, at file and line."),
    "calibrate": ("taskfactory.cli.calibrate:command", "Measure whether a task's gates are sound, and certify it."),
    "build": ("taskfactory.cli.build:command", "Build the bundle of each task."),
    "show": ("taskfactory.cli.show:command", "Show the README a solver will get."),
    "grade": ("taskfactory.cli.grade:command", "Grade a submission at the hidden shapes."),
    "measure": ("taskfactory.cli.measure:command", "Measure a submission at the public shapes, as a solver would."),
    "redteam": ("taskfactory.cli.redteam:command", "Attack the grader on a task, with a corpus of known exploits."),
    "run": ("taskfactory.cli.run:command", "Grade many submissions, unattended, into a store."),
    "regrade": ("taskfactory.cli.regrade:command", "Grade stored submissions again; both results are kept."),
    "check-bundle": ("taskfactory.cli.check_bundle:command", "Try bundles out with Harbor: lint, oracle, no-op."),
    "registry": ("taskfactory.cli.registry:command", "Write the Harbor dataset of a folder of bundles."),
    "report": ("taskfactory.cli.report:command", "Write leaderboards and result pages as a static site."),
    "serve": ("taskfactory.cli.serve:command", "Serve the report, following a run as it goes on."),
    "export": ("taskfactory.cli.export:command", "Write a task in the format of another benchmark."),
    "import": ("taskfactory.cli.import_:command", "Make a spec of another benchmark's problem."),
    "doctor": ("taskfactory.cli.doctor:command", "Report device, driver, versions, compilers and ceilings."),
}

_EPILOG = "Exit status: 0 fine, 1 the submission failed, 2 an author's or usage error, 3 a broken environment."


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(n, help=t) for n, (_, t) in COMMANDS.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TaskfactoryError as error:
            report_error(error)
            ctx.exit(error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort, EOFError, BrokenPipeError):
            raise
        except OSError as error:
            click.echo(f"taskfactory: {error}", err=True)
            ctx.exit(3)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except Exception:
            # Status 1 is reserved for a submission that failed, so a defect of ours must not exit with it.
            traceback.print_exc()
            click.echo("taskfactory: internal error; please report the traceback above", err=True)
            ctx.exit(3)


def report_error(error: TaskfactoryError) -> None:
    """Print an error to stderr: the findings of a spec in full, anything else as one message."""
    if isinstance(error, SpecError) and error.findings:
        click.echo(format_text(error.findings, color=color_wanted(sys.stderr)), err=True)
    else:
        click.echo(f"taskfactory: {error}", err=True)


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="taskfactory")
def main() -> None:
    """Turn spec files into graded GPU-kernel-writing tasks.

    \b
    taskfactory new fused-thing          write a spec to start from
    taskfactory validate specs/          check every spec of a folder
    taskfactory build                    build every bundle into build/
    taskfactory grade based-forward solutions/based.py
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of another encoding gets escapes, not a traceback.
            stream.reconfigure(errors="backslashreplace")
