"""`kgym bug reproduce`, `kgym bug calibrate` and `kgym demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click
from rich.markup import escape

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import DumpMethod, Severity
from kgym.bugs import bundle as bugs
from kgym.bugs import earlier_jobs, tracing_job
from kgym.bugs.bug import DEFAULT_OPTIONS, Bug, ProgramKind, TrialOptions
from kgym.bugs.conclusion import ANSWERS, Answer, conclusion
from kgym.bugs.tracing_job import TraceResult, Tracing
from kgym.bugs.trial_result import CalibrationResult, JudgedFinding, TrialResult
from kgym.configs import TAPES
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.commands.check import check_first
from kgym_cli.commands.trial_options import (
    accept_option,
    compare_option,
    compiler_option,
    effort_options,
    kernel_option,
    on_kernel,
    repro_option,
    root_option,
)
from kgym_cli.inputs.parameters import PATH_OR_STDIN, SECONDS, complete_bug
from kgym_cli.inputs.patch_files import patch_file
from kgym_cli.jobs.job_answer import (
    CalibrationAnswer,
    CheckAnswer,
    FailedStep,
    TrialAnswer,
    crashes,
    exit_status,
)
from kgym_cli.jobs.job_progress import follow
from kgym_cli.jobs.outcome_table import colour
from kgym_cli.output import json_option, leave, people, printed_json, results
from kgym_cli.platforms.scheduler_choice import scheduler
from kgym_cli.settings import options_of

if TYPE_CHECKING:
    from kgym.client import Client

DEMO_BUG = "watch-queue-filter"
_STYLES = {"same_crash": "red", "other_crash": "magenta", "no_crash": "green"}
# Config symbols that are printed; --json has all of them.
_NAMED = 5
fix_option = click.option(
    "--fix",
    type=PATH_OR_STDIN,
    help="Unified diff to test instead of the known fix; may be compressed; - is stdin.",
)


@click.command()
@click.argument("name", shell_complete=complete_bug)
@options_of("bug reproduce")
@kernel_option
@root_option
@fix_option
@click.option("--no-fix", is_flag=True, help="Only reproduce the bug; test no fix.")
@repro_option
@effort_options
@compiler_option
@click.option("--validate", is_flag=True, help="Also review the fix itself and smoke-test it.")
@click.option(
    "--variants/--no-variants",
    default=True,
    help="Also run programs close to the reproducer, which the fix must survive as well.",
)
@compare_option
@click.option("--trace", is_flag=True, help="Also show a trace of the kernel before the crash.")
@click.option(
    "--dump",
    type=click.Choice(get_args(DumpMethod)),
    default="hypervisor",
    help="How the trace is read from the crashed kernel.",
)
@click.option(
    "--files",
    multiple=True,
    help="C file to trace; may be repeated.  [default: those the fix changes]",
)
@accept_option
@json_option(TrialAnswer | CheckAnswer)
def reproduce(
    name: str,
    kernel: str | None,
    root: Literal["initramfs", "disk"] | None,
    fix: Path | None,
    no_fix: bool,
    repro: ProgramKind | None,
    confidence: float,
    instances: int | None,
    time: float | None,
    compiler: str | None,
    validate: bool,
    variants: bool,
    compare_fix: bool,
    trace: bool,
    dump: DumpMethod,
    files: tuple[str, ...],
    accept_findings: str,
    as_json: bool,
) -> None:
    """Crash the kernel with the bug, then show whether the fix holds.

    NAME is a shipped bug or the folder of a bundle. The exit status is 0 if the
    bug reproduces and the fix resolves it, 1 if a verdict or a blocking finding
    denies that, or if --fix does not apply or compile (then --json is that of
    `kgym check`), 2 for bad input, 3 if there is no verdict.

    Measurements by `kgym bug calibrate` and earlier trials decide how many VMs the
    fix must survive, and how long. A bug that reproduces quickly is measured first;
    for others, the bundle decides. The first trial of a bug with variants takes
    two or three minutes more, to learn them.
    """
    wanted = TrialOptions(
        instances=instances,
        time=time,
        validate=validate,
        confidence=confidence,
        variants=variants,
        compare_fix=compare_fix,
    )
    bug = _loaded(on_kernel(name, kernel), repro).built_by(compiler)
    if compare_fix and (no_fix or not bug.compares(wanted)):
        why = f"needs a known fix of {bug.name}, and excludes --no-fix and --no-variants"
        raise UserError("bad_option", f"--compare-fix {why}.")
    bug = bug.on_root(root) if root else bug
    how = tracing_job.tracing(bug, files, dump) if trace else None
    accepted = reasons(accept_findings)
    _try(bug, fix, wanted, accepted, no_fix=no_fix, as_json=as_json, how=how)


@click.command()
@click.argument("name", shell_complete=complete_bug)
@kernel_option
@click.option("--runs", type=click.IntRange(1, 1000), default=10)
@click.option(
    "--time",
    type=SECONDS,
    help="Seconds after which a run counts as not crashed.  [default: the bundle's]",
)
@compiler_option
@repro_option
@json_option(CalibrationAnswer)
def calibrate(
    name: str,
    kernel: str | None,
    runs: int,
    time: float | None,
    compiler: str | None,
    repro: ProgramKind | None,
    as_json: bool,
) -> None:
    """Measure how often and how soon the bug reproduces on the kernel without the fix.

    `kgym bug reproduce` uses the result as long as kernel, reproducer and VM are the
    same. The exit status is 0 if the bug showed, 1 if it did not, 2 for bad input, 3
    if nothing was measured.
    """
    bug = _loaded(on_kernel(name, kernel), repro).built_by(compiler)
    with scheduler(work=True) as client:
        job = _follow(client, bug.calibration(runs, time))
        together = earlier_jobs.known(client, bug)
    outcome = CalibrationResult.of(bug, job, together)
    if not printed_json(CalibrationAnswer(**dict(outcome), failure=FailedStep.of(job)), as_json):
        _print_calibration(outcome)
        if together is not None and together.runs > outcome.runs:
            runs_in_all = f"{together.crashed} of {together.runs} runs"
            results.print(f"including earlier runs: {runs_in_all} showed the bug")
    leave(exit_status(outcome.answer(job)))


@click.command()
@options_of("demo")
@fix_option
@accept_option
@click.option(
    "--agent",
    is_flag=True,
    help="Let CrashFixer find the fix, with a model's answers replayed from a tape.",
)
@click.option(
    "--bench",
    is_flag=True,
    help="Run two scripted agents on bugs, with and without feedback; print the leaderboard.",
)
@click.option(
    "--bugs",
    "count",
    type=click.IntRange(1, 1000),
    help="Bugs for --bench.  [default: 10; with --one-kernel 8]",
)
@click.option(
    "--one-kernel", is_flag=True, help="With --bench, use only bugs of the demo's kernel."
)
@json_option(TrialAnswer, CheckAnswer, "kgym.bench.report:Report")
def demo(
    fix: Path | None,
    accept_findings: str,
    agent: bool,
    bench: bool,
    count: int | None,
    one_kernel: bool,
    as_json: bool,
) -> None:
    """Show a real bug: build the kernel, crash it, fix it, prove the fix.

    With --agent, CrashFixer searches for the fix, and --json prints the answer of `kgym fix`. A
    hand-written tape answers instead of a model, with patches that fail in every possible way.
    Kernels, checks, crashes and verdicts are real.

    With --bench, two agents are measured: one learns from `run_kernel` that its first patch is
    wrong, one guesses. --json prints the answer of `kgym bench report`.
    """
    if bench:
        if fix is not None or agent:
            raise UserError("bad_option", "--bench excludes --fix and --agent.")
        _benched(count or (8 if one_kernel else 10), one_kernel=one_kernel, as_json=as_json)
        return
    bug = bugs.load(DEMO_BUG)
    if agent and fix is not None:
        raise UserError("bad_option", "--fix and --agent exclude each other.")
    people.print(
        f"[bold]{escape(bug.file.title)}[/] ({escape(bug.file.references[0])})", markup=True
    )
    people.print(bug.file.summary.strip() + "\n", style="dim")
    if agent:
        from kgym_cli.commands.fix import replayed  # noqa: PLC0415 - needs the extra `agent`

        people.print("the model's answers are replayed from a tape")
        replayed(DEMO_BUG, TAPES / f"{DEMO_BUG}.jsonl", as_json)
    accepted = reasons(accept_findings)
    _try(bug, fix, DEFAULT_OPTIONS, accepted, no_fix=False, as_json=as_json)


def _benched(count: int, *, one_kernel: bool, as_json: bool) -> None:
    """Run the demo's campaign and print its leaderboard."""
    extras.require("bench")
    from kgym_cli.bench import demo as bench_demo  # noqa: PLC0415 - needs the extra `bench`
    from kgym_cli.bench.leaderboard import show  # noqa: PLC0415

    report = bench_demo.run(count, one_kernel=one_kernel)
    if not printed_json(report, as_json):
        show(report)


def _loaded(name: str, repro: ProgramKind | None) -> Bug:
    bug = bugs.load(name)
    return bug if repro is None else bug.run_by(repro)


def _try(
    bug: Bug,
    fix: Path | None,
    wanted: TrialOptions,
    accepted: frozenset[str],
    *,
    no_fix: bool,
    as_json: bool,
    how: Tracing | None = None,
) -> None:
    if fix is not None and no_fix:
        raise UserError("bad_option", "--fix and --no-fix exclude each other.")
    patch = patch_file(fix) if fix is not None else bug.fix
    with scheduler(work=True) as client:
        # A bundle's own fix compiles; another often does not, so it is checked before the crash.
        if fix is not None and patch is not None:
            check_first(client, bug, patch, as_json)
        # All measurements of this bug on this kernel count together, whoever made them.
        wanted = earlier_jobs.informed(client, bug, wanted)
        if patch is not None and not no_fix:
            _tell_effort(bug, wanted)
        request = bug.job(None if no_fix else patch, wanted)
        job = _follow(client, tracing_job.traced(request, how) if how else request)
        step_crashes = crashes(client, job) if as_json else []
    outcome = TrialResult.of(bug.name, job, accepted)
    trace = TraceResult.of(job) if how is not None else None
    if not printed_json(TrialAnswer.with_crashes(outcome, trace, job, step_crashes), as_json):
        _print(outcome, trace)
    leave(exit_status(conclusion(job, accepted).answer))


def reasons(words: str) -> frozenset[str]:
    """Return the reasons listed by --accept-findings."""
    return frozenset(word for word in words.replace(",", " ").split())


def _tell_effort(bug: Bug, wanted: TrialOptions) -> None:
    """Print what the fix must survive, and why."""
    known, chosen, own = wanted.known, bug.effort(wanted), bug.file.reproducer
    shown = f"{known.crashed} of {known.runs} runs showed the bug" if known else ""
    if chosen is not None:
        needed = f"{chosen.instances} x {chosen.time:g} s for {chosen.confidence:.0%}"
        people.print(f"calibrated: {shown}; {needed}")
    elif bug.is_measured(wanted):
        people.print(f"{shown or 'not calibrated'}: a bug that shows soon is measured first")
    elif known is not None:
        took = "too few for this confidence, or proof would take too long"
        message = f"{shown}: {took}; {own.instances} x {own.time:g} s, as the bundle says"
        people.print(message, style="yellow")


def _follow(client: "Client", request: JobRequest) -> JobView:
    """Submit the job or join an earlier one, and show it until it ends."""
    submission = earlier_jobs.submit(client, request)
    job = submission.job
    people.print(f"job {job.id}" + (", submitted earlier" if submission.taken_up else ""))
    try:
        return follow(client, job)
    except KeyboardInterrupt:
        people.print(f"interrupted; job {job.id} is kept: `kgym job wait {job.id}` resumes it")
        raise


def _print_calibration(outcome: CalibrationResult) -> None:
    if outcome.reason is not None:
        results.print(outcome.reason)
        return
    rate = f"{outcome.crashed} of {outcome.runs} runs showed the bug"
    if not outcome.crashed:
        results.print(f"{rate}: {outcome.outcomes}")
        return
    results.print(f"{rate}: at least {outcome.rate_at_least:.0%} do, with 95% confidence")
    quantiles = outcome.seconds_to_crash or {}
    times = ", ".join(f"{name} {value:g} s" for name, value in quantiles.items())
    results.print(f"time to the crash: {times}")
    for recommendation in outcome.recommended:
        needed = f"{recommendation.instances} instances x {recommendation.time:g} s"
        results.print(f"for {recommendation.confidence:.0%} confidence in a fix: {needed}")


def _print(outcome: TrialResult, trace: TraceResult | None) -> None:
    if outcome.compiler_substitution:
        results.print(f"compiler: {outcome.compiler_substitution}")
    _print_config(outcome)
    for side, result in (("before", outcome.before), ("after", outcome.after)):
        if result is not None:
            style = _STYLES.get(result.verdict, "yellow")
            results.print(f"{side:>7}: [bold {style}]{result.verdict}[/]", end="  ", markup=True)
            results.print(result.reason)
            if result.evidence_line:
                results.print(f"         evidence: {result.evidence_line}")
            if result.behavioural_equivalence is not None:
                results.print(f"         {result.behavioural_equivalence}")
            for finding in result.findings:
                _print_finding(finding)
    style, words = colour(outcome.outcome), outcome.outcome.words.capitalize()
    results.print(
        f"[bold {style}]{words}[/] in {outcome.seconds['total']:.0f} s", end="", markup=True
    )
    good = ANSWERS.get(outcome.outcome) is Answer.YES
    results.print("" if good else f": {outcome.reason}")
    for obstacle in outcome.obstacles:
        results.print(f"obstacle: {obstacle.reason}: {obstacle.message}")
    if trace is not None:
        _print_trace(trace)


def _print_config(outcome: TrialResult) -> None:
    """Print differences to the requested config, and what became of `=m`."""
    dropped = [
        f"{dropped_symbol.symbol}={dropped_symbol.got}, not {dropped_symbol.wanted}"
        for dropped_symbol in outcome.dropped_symbols
    ]
    if dropped:
        results.print(f" config: {_first(dropped)}")
    if outcome.config_version:
        what = f"written for {outcome.config_version}, converted to this kernel's version"
        results.print(f" config: {what}")
    if outcome.built_in:
        results.print(f"built in, instead of as modules: {_first(outcome.built_in)}")
    if outcome.modules:
        results.print(f"modules: {outcome.modules}, loaded on demand")


def _first(words: list[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f", and {more} more (--json)" if more > 0 else "")


def _print_finding(finding: JudgedFinding) -> None:
    where = f"{finding.file}:{finding.line}: " if finding.line else ""
    mark = ""
    if finding.severity == Severity.BLOCKING:
        mark = "accepted: " if finding.accepted else "BLOCKING: "
    results.print(f"         {mark}{finding.check}: {where}{finding.message}")


def _print_trace(outcome: TraceResult) -> None:
    if outcome.trace is None:
        results.print(f"no trace: {outcome.reason}")
        return
    from kgym_cli.output.trace_view import tree  # noqa: PLC0415 - its imports take 0.1 s

    results.print(tree(outcome.trace, outcome.title or ""))
