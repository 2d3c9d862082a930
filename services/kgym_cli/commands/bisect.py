"""`kgym bisect`."""

import time
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

import click
from pydantic import Field
from rich.markup import escape

from kgym.api.faults import refused_at
from kgym.api.steps import GitSource
from kgym.bisection import bisection
from kgym.bisection.bisection import (
    MOST_RUNS,
    MOST_TESTS,
    BisectOptions,
    Outcome,
    Plan,
    Result,
    Saw,
    Tried,
)
from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug, ProgramKind
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym_cli.commands.trial_options import compiler_option, kernel_option, on_kernel, repro_option
from kgym_cli.inputs.parameters import SECONDS, complete_bug, group_name
from kgym_cli.output import Exit, json_option, leave, people, print_json, printed_json, results
from kgym_cli.platforms import interruptible_work

_STYLES = {Saw.CRASH: "red", Saw.QUIET: "green", Saw.SKIPPED: "magenta"}
# Candidates that are printed if several commits are left.
_SHOWN = 20


class BisectPlan(Plan):
    """First line of --json: the search space."""

    kind: Literal["plan"] = "plan"
    name: str = Field(description="group of the jobs")


class BisectTest(Tried):
    """A line of --json: a tested commit."""

    kind: Literal["test"] = "test"


class BisectAnswer(Result):
    """Last line of --json."""

    kind: Literal["answer"] = "answer"
    name: str = Field(description="group of the jobs")
    seconds: float = Field(description="duration of this command")


@click.command()
@click.argument("name", metavar="BUG", shell_complete=complete_bug)
@click.option("--good", required=True, metavar="COMMIT", help="A commit without the bug.")
@click.option("--bad", metavar="COMMIT", help="A commit with the bug.  [default: the bundle's]")
@click.option(
    "--repo", metavar="URL", help="URL or path of the Git repository.  [default: the bundle's]"
)
@click.option(
    "--fix", is_flag=True, help="Find the fix: the good commit is newer than the bad one."
)
@click.option("--any-crash", is_flag=True, help="Count any crash as the bug, whatever its title.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.999),
    default=0.95,
    help="Required confidence of the answer.",
)
@click.option(
    "--calibrate",
    type=click.IntRange(3, 1000),
    default=10,
    help="Runs at the bad commit that measure how often the bug shows.",
)
@click.option(
    "--time", "seconds", type=SECONDS, help="Seconds per calibration run.  [default: the bundle's]"
)
@click.option(
    "--most-runs", type=click.IntRange(1, 1000), default=MOST_RUNS, help="Most runs per test."
)
@click.option(
    "--most-tests", type=click.IntRange(1, 1000), default=MOST_TESTS, help="Most tests in all."
)
@click.option(
    "--most-hours",
    type=click.FloatRange(0, 10_000, min_open=True),
    help="Start no further test after this time.  [default: no limit]",
)
@click.option("--dry-run", is_flag=True, help="Only list the commits and estimate the tests.")
@kernel_option
@compiler_option
@repro_option
@click.option("--name", "group", help="Group of the jobs.  [default: made of bug and commits]")
@click.option("--retry", is_flag=True, help="Retry what has no answer.")
@json_option(BisectPlan | BisectTest | BisectAnswer)
def bisect(
    name: str,
    good: str,
    bad: str | None,
    repo: str | None,
    fix: bool,
    any_crash: bool,
    confidence: float,
    calibrate: int,
    seconds: float | None,
    most_runs: int,
    most_tests: int,
    most_hours: float | None,
    dry_run: bool,
    kernel: str | None,
    compiler: str | None,
    repro: ProgramKind | None,
    group: str | None,
    retry: bool,
    as_json: bool,
) -> None:
    """Find the commit that introduced a bug, or with --fix the one that fixed it.

    BUG is a shipped bug or the folder of a bundle, whose config, program and VM are used. The bug's
    rate is first measured at the bad commit; then each kernel is run often enough for the bug to
    show. As runs are noisy, no commit is ruled out for good: the answer has a confidence. Kernels
    that do not build or boot are skipped.

    If the command is interrupted or killed, repeat it; nothing runs twice. The exit status is 0 if
    one commit is found, 1 if several are left or the good commit has the bug, 2 for bad input, 3
    if no answer is reached.
    """
    begun = time.monotonic()
    bug, options = _wanted(name, kernel, good, bad, repo, repro, compiler)
    bug = replace(bug, any_crash=any_crash)
    options = replace(
        options,
        sweep=replace(options.sweep, name=_group(group, bug, options, fix=fix), retry=retry),
        fix=fix,
        confidence=confidence,
        calibrate=calibrate,
        time=seconds,
        most_runs=most_runs,
        most_tests=most_tests,
        most_hours=most_hours,
    )
    hear = partial(_hear, options.sweep.name, as_json=as_json)

    async def work(client: AsyncClient, sweep: SweepOptions) -> Result | None:
        asked = replace(options, sweep=sweep)
        if not dry_run:
            return await bisection.bisect(client, bug, asked, hear)
        hear(await bisection.planned(client, bug, asked))
        return None

    result = interruptible_work.run(work, options.sweep)
    if result is None:
        leave(Exit.OK)
    _answer(result, options.sweep.name, time.monotonic() - begun, as_json=as_json)
    leave(_status(result))


def _hear(name: str, news: Plan | Tried, *, as_json: bool) -> None:
    if isinstance(news, Plan):
        people.print(
            f"{name}: {news.commits} commits from {news.good[:12]} (good) to"
            f" {news.bad[:12]} (bad); about {news.tests} tests, {news.runs} runs"
        )
        if as_json:
            print_json(BisectPlan(**dict(news), name=name))
        return
    runs = f"{news.crashed} of {news.completed} runs crashed" if news.completed else ""
    why = "; ".join(filter(None, (runs, news.reason)))
    people.print(
        f"{news.number}. {news.commit[:12]} [{_STYLES[news.saw]}]{news.saw}[/]"
        f" {escape(why)}: {news.left} left  {escape(news.subject)}",
        markup=True,
    )
    if as_json:
        print_json(BisectTest(**dict(news)))


def _wanted(
    name: str,
    kernel: str | None,
    good: str,
    bad: str | None,
    repo: str | None,
    repro: ProgramKind | None,
    compiler: str | None,
) -> tuple[Bug, BisectOptions]:
    """Return bug and options; raise UserError `no_history` without repository or bad commit."""
    bug = bugs.load(on_kernel(name, kernel)).built_by(compiler)
    bug = bug if repro is None else bug.run_by(repro)
    source = bug.build.source
    if isinstance(source, GitSource):
        repo, bad = repo or source.url, bad or source.commit
    if repo is None or bad is None:
        message = f"the kernel of {bug.name} is not a Git commit: give --repo and --bad"
        raise UserError("no_history", message)
    # Git's own rule: only a URL or an scp-like address has a colon. Workers have other working
    # directories, so paths must be absolute.
    url = repo if ":" in repo else str(Path(repo).expanduser().absolute())
    with refused_at("--good, --bad", "bad_option"):
        for commit in (good, bad):
            GitSource(url=url, commit=commit)
    return bug, BisectOptions(url, good, bad, SweepOptions(""))


def _group(given: str | None, bug: Bug, options: BisectOptions, *, fix: bool) -> str:
    # The default group is a hash of the question: the same command finds its jobs again, another
    # question gets other jobs.
    ends = "\n".join((bug.name, options.url, options.good, options.bad, str(fix)))
    return group_name(given or f"bisect-{sha256(ends.encode()).hexdigest()[:10]}")


def _answer(result: Result, name: str, seconds: float, *, as_json: bool) -> None:
    if printed_json(BisectAnswer(**dict(result), name=name, seconds=round(seconds, 1)), as_json):
        return
    sure = f"{result.confidence:.1%} sure, by {result.tests} tests, {result.runs} runs"
    did = "fixed" if result.fix else "introduced"
    first = result.culprits[0]
    match result.outcome:
        case Outcome.FOUND:
            results.print(f"{first.commit} {did} the bug: {sure}")
            results.print(f"  {first.subject}")
        case Outcome.GOOD_HAS_IT:
            results.print(f"{result.good} has the bug as well: {sure}")
        case _:
            several = result.outcome is Outcome.SEVERAL
            why = "further tests cannot help" if several else "--most-tests or --most-hours"
            results.print(f"one of {result.left} {did} the bug: {sure} ({why})")
            for culprit in result.culprits[:_SHOWN]:
                results.print(f"  {culprit.commit} {culprit.chance:.1%} {culprit.subject}")


def _status(result: Result) -> Exit:
    if result.outcome is Outcome.OPEN:
        return Exit.INFRASTRUCTURE
    return Exit.OK if result.outcome is Outcome.FOUND else Exit.NEGATIVE
