"""`kgym bug show` and `kgym bug source`."""

from dataclasses import asdict
from pathlib import Path

import click
from pydantic import Field
from rich.markup import escape

from kgym.api import syz_program
from kgym.api.jobs import JobRequest
from kgym.api.syz_program import Options
from kgym.bugs import bundle as bugs
from kgym.bugs import detectors, tree_changes
from kgym.bugs.bug import Bug
from kgym_cli.commands.bug import BugAnswer
from kgym_cli.inputs.parameters import PATH, complete_bug
from kgym_cli.output import json_option, people, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import settings


class BugWithJob(BugAnswer):
    """A bug, and the job of its trial, as a body of POST /v1/jobs."""

    options: list[Options] = Field(description="of its syzkaller programs, from their headers")
    config_findings: list[str] = Field(
        description="detectors for its crash that its complete config leaves out"
    )
    job: JobRequest


@click.command()
@click.argument("name", shell_complete=complete_bug)
@json_option(BugWithJob)
def show(name: str, as_json: bool) -> None:
    """Show facts about a bug."""
    bug = bugs.load(name)
    answer = _answer(bug)
    if printed_json(answer, as_json):
        return
    about = escape(f"{bug.file.title}\n\n{bug.file.summary.strip()}\n")
    results.print(f"[bold]{escape(bug.name)}[/]: {about}", markup=True)
    for reference in bug.file.references:
        results.print(f"  {reference}")
    results.print(f"\nfiles: {', '.join(bug.file.files)}")
    program = bug.file.reproducer
    results.print(f"reproducer: {program.file}, {program.time:g} s")
    for options in answer.options:
        words = (f"{name}={value}" for name, value in asdict(options).items())
        results.print(f"syzkaller: {', '.join(words)}")
    for finding in answer.config_findings:
        results.print(f"config: {finding}")


def _config_findings(bug: Bug) -> list[str]:
    # A config of fragments is known only once kconfig has completed it.
    if bug.build.config.full is None:
        return []
    symbols = detectors.symbols(bug.build.config.full)
    lacking = detectors.detectors(symbols, bug.file.vm.append).lacking
    needed = detectors.needed(bug.titles)
    return [f"{name} is not detected: {why}" for name, why in lacking.items() if name in needed]


def _answer(bug: Bug) -> BugWithJob:
    file = bug.file
    about = {
        "name": bug.name,
        "title": file.title,
        "alt_titles": file.alt_titles,
        "class": file.kind,
        "summary": file.summary.strip(),
        "references": file.references,
        "files": file.files,
        "has_fix": bug.fix is not None,
    }
    every = (*bug.reproducers, *bug.on_request)
    options = [syz_program.options(program.text) for program in every if program.kind == "syz"]
    findings = _config_findings(bug)
    return BugWithJob(**about, options=options, config_findings=findings, job=bug.job(bug.fix))


class SourceAnswer(Answer):
    """Output of `bug source --json`."""

    bug: str
    folder: Path
    source: str


@click.command()
@click.argument("name", shell_complete=complete_bug)
@click.argument("folder", type=PATH)
@json_option(SourceAnswer)
def source(name: str, folder: Path, as_json: bool) -> None:
    """Write a bug's kernel source to a new FOLDER, as a Git repository.

    It is the tree that builds see, in one commit: the published source, what builds add, and the
    bug. Edit it, then take the patch with `git diff > my.patch`, or call `run_kernel` there.
    """
    bug = bugs.load(name)
    people.print("the first source of a kernel takes minutes, others seconds", style="dim")
    from kgym_cli.bugs.source_tree import write  # noqa: PLC0415 - its imports take 0.3 s

    identity = write(bug, folder, settings().data)
    shipped = bugs.is_shipped(name)
    # So that `run_kernel`, called in the tree, needs no --bug.
    tree_changes.remember(folder, name if shipped else str(Path(name).absolute()))
    if printed_json(SourceAnswer(bug=bug.name, folder=folder.absolute(), source=identity), as_json):
        return
    results.print(f"{folder}: {identity}")
    results.print(f"edit it, then: git -C {folder} diff > my.patch; kgym check {name} my.patch")
