"""What the pages for people say exists: commands and options, make targets, files, headings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from taskfactory.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SHELL = ("console", "bash", "sh", "shell")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """(language, lines) of every fenced block."""
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        yield language, text.splitlines()


def typed(page: Path) -> Iterator[list[str]]:
    """The commands a page tells to type, as words: after `$` in shell blocks, up to a comment or a pipe."""
    for language, lines in blocks(page):
        for line in lines:
            if language in SHELL and line.startswith("$ "):
                words = shlex.split(line[2:], comments=True)
                yield words[: words.index("|")] if "|" in words else words


def mentioned(page: Path) -> Iterator[list[str]]:
    """Commands in running text: `taskfactory …` and `make …` between backticks."""
    for code in re.findall(r"(?<!`)`((?:taskfactory|make) [^`]+)`", page.read_text("utf-8")):
        yield shlex.split(code)


def wrong(words: list[str]) -> str:
    """What is wrong with a command of ours, or an empty string; other programs are not judged."""
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        return "" if set(words[1:]) <= targets() else f"no target {words[1:]}"
    if program in ("python", "python3") and len(words) > 1 and words[1].endswith(".py") and "/" in words[1]:
        return "" if (ROOT / words[1]).is_file() else f"no file {words[1]}"
    if program != "taskfactory" or len(words) == 1:
        return ""
    if words[1] in ("--help", "-h", "--version"):
        return ""
    if words[1] not in COMMANDS:
        return f"no command {words[1]}"
    command = main.get_command(click.Context(main), words[1])
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h", "--"}
    unknown = [word for word in words[2:] if word.startswith("-") and word.split("=")[0] not in known]
    return f"{words[1]} has no {', '.join(unknown)}" if unknown else ""


def targets() -> set[str]:
    """The targets that `make help` shows."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_commands_exist(page: Path) -> None:
    found = [(" ".join(words), wrong(words)) for words in (*typed(page), *mentioned(page))]
    assert [entry for entry in found if entry[1]] == []


def test_an_unknown_command_or_option_is_noticed() -> None:
    assert wrong(["taskfactory", "bild"]) == "no command bild"
    assert wrong(["taskfactory", "build", "--chek"]) == "build has no --chek"
    assert wrong(["make", "tset"])
    assert wrong(["python", "bench/nothing.py"])


def test_the_readme_shows_the_two_commands_and_every_way() -> None:
    commands = [" ".join(words) for words in typed(ROOT / "README.md")]
    assert commands[:2] == ["make demo", "make test"]
    for verb in ("new", "validate", "build", "grade"):
        assert any(command.startswith(f"taskfactory {verb} ") for command in commands)
    assert any(command.startswith("python measure.py") for command in commands)


def test_the_readme_names_every_task() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    tasks = [path.stem.replace("_", "-") for path in (ROOT / "specs").glob("*.py")]
    assert [task for task in tasks if f"`{task}`" not in text] == []


@pages
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@pages
def test_no_page_names_a_place_of_some_machine(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:work|root|home|Users|tmp/venv|farm)\b\S*", page.read_text("utf-8")) == []


def test_every_target_is_documented_and_phony() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    assert set(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)) == targets()
    assert {
        "setup",
        "demo",
        "test",
        "test-full",
        "test-gpu",
        "lint",
        "validate",
        "build",
        "grade",
        "bench",
        "clean",
    } <= targets()


def test_statuses_of_the_grading_page_are_those_of_the_grader() -> None:
    from taskfactory.grader.result import Status

    text = (ROOT / "docs" / "grading.md").read_text("utf-8")
    table = text.split("## Statuses")[1].split("##")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == {status.value for status in Status}
