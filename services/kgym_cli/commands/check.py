"""`kgym check`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.markup import escape

from kgym.api.jobs import JobView
from kgym.api.steps import CheckResult, FunctionCheck, Patch, PatchCheck, PatchOutcome
from kgym.bugs import bundle as bugs
from kgym.bugs import earlier_jobs
from kgym.bugs.bug import Bug
from kgym.bugs.conclusion import ANSWERS, Answer, check_outcome, check_reason, checked
from kgym.errors import UserError
from kgym_cli.commands.trial_options import compiler_option
from kgym_cli.inputs.parameters import complete_bug
from kgym_cli.inputs.patch_files import patch_file
from kgym_cli.jobs.job_answer import CheckAnswer, exit_status
from kgym_cli.jobs.job_progress import follow, no_result
from kgym_cli.jobs.outcome_table import colour
from kgym_cli.output import echo, json_option, leave, people, print_json, print_table, results
from kgym_cli.platforms.scheduler_choice import scheduler
from kgym_cli.settings import options_of, settings

if TYPE_CHECKING:
    from kgym.client import Client


@click.command()
@click.argument("bug", shell_complete=complete_bug)
@click.argument("patches", nargs=-1, required=True, type=click.Path())
@click.option(
    "--dependents",
    type=click.IntRange(1, 100_000),
    default=100,
    help="Most objects to compile for a changed header.",
)
@compiler_option
@options_of("check")
@click.option("--fresh", is_flag=True, help="Check again, ignoring earlier answers.")
@json_option(CheckAnswer)
def check(
    bug: str,
    patches: tuple[str, ...],
    dependents: int,
    compiler: str | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Check whether each of PATCHES applies and compiles, and show what it changes.

    BUG is a shipped bug or the folder of a bundle. A patch is a file with a unified diff or with
    mails, compressed or not; - for standard input; or the URL of a mail in a mailing list's
    archive, such as https://lore.kernel.org/all/ID/: the worker fetches the newest version of its
    series, if its operator allows the host. Each is tried alone on the kernel with the bug, a
    series as a whole.

    The exit status is 0 if all compile, 1 if one does not, 2 for bad input (also if a file holds no
    patch), 3 if there is no answer.
    """
    loaded = bugs.load(bug).built_by(compiler)
    given = [_given(name) for name in patches]
    readable = [patch for patch in given if not isinstance(patch, PatchCheck)]
    # Nothing is submitted for patches that no builder could apply.
    if not readable:
        unread = [check for check in given if isinstance(check, PatchCheck)]
        raise UserError(
            str(unread[0].details["reason"]), "; ".join(check.reason for check in unread)
        )
    request = loaded.check(readable, dependents=dependents, cache="fresh" if fresh else "use")
    with scheduler(work=True) as client:
        job = client.submit(request)
        job = follow(client, job)
    result = _result(job)
    result = result and _with_unread(result, given)
    _leave(loaded.name, job, result, as_json)


def check_first(client: "Client", bug: Bug, patch: Patch, as_json: bool) -> None:
    """End the command as `kgym check` does if the patch does not apply, or does not compile."""
    job = follow(client, earlier_jobs.submit(client, bug.check([patch])).job)
    result = _result(job)
    # Without a result, the trial fails for the same reason, and says so.
    if result is not None and _answer(result) in {Answer.NO, Answer.USER}:
        _leave(bug.name, job, result, as_json)


def _leave(bug: str, job: JobView, result: CheckResult | None, as_json: bool) -> NoReturn:
    if as_json:
        print_json(CheckAnswer.of(bug, job, result))
    elif result is not None:
        _print(result)
    leave(no_result(job) if result is None else exit_status(_answer(result)))


def _answer(result: CheckResult) -> Answer:
    outcome, _ = checked(result.patches)
    return ANSWERS[outcome]


def _given(name: str) -> Patch | PatchCheck:
    """Return the patch, or a failed check if the file holds none: the others are still checked."""
    if name.startswith(("https://", "http://")):
        return Patch(name=name[:200], url=name, drop_binaries=settings().drop_binaries)
    path = Path(name)
    try:
        return patch_file(path)
    except UserError as error:
        # A file that cannot be read is a mistake on the command line; a file that is no patch is a
        # result.
        if error.reason == "cannot_read":
            raise
        return PatchCheck(
            name=path.name,
            outcome=PatchOutcome.REFUSED,
            reason=error.message,
            details={"reason": error.reason},
            seconds=0,
        )


def _with_unread(result: CheckResult, given: Sequence[Patch | PatchCheck]) -> CheckResult:
    checked = iter(result.patches)
    checks = [item if isinstance(item, PatchCheck) else next(checked) for item in given]
    return result.model_copy(update={"patches": checks})


def _result(job: JobView) -> CheckResult | None:
    (step,) = job.steps
    return step.result if isinstance(step.result, CheckResult) else None


def _print(result: CheckResult) -> None:
    if result.compiler_substitution:
        results.print(f"compiler: {result.compiler_substitution}")
    columns = ("patch", "outcome", "files", "objects", "functions", "s")
    print_table(*columns, rows=map(_row, result.patches))
    for patch in result.patches:
        if words := _words(patch):
            results.print(f"\n[bold]{escape(patch.name)}[/]", markup=True)
            echo(words.rstrip())
        for note in patch.notes:
            people.print(f"note: {note}")


def _row(check: PatchCheck) -> tuple[str, ...]:
    return (
        escape(check.name),
        f"[{colour(check_outcome(check.outcome))}]{check.outcome}[/]",
        str(len(check.files)),
        _coverage(check),
        escape(", ".join(map(_function, check.functions))),
        f"{check.seconds:.2f}",
    )


def _coverage(check: PatchCheck) -> str:
    """Return the number of compiled objects, and of all dependent ones if it differs."""
    done = sum(file.objects for file in check.files)
    of = sum(file.dependents for file in check.files)
    return str(done) if done == of else f"{done} of {of}"


def _function(function: FunctionCheck) -> str:
    before, after = function.instructions_before, function.instructions_after
    return f"{function.name} {_number(before)}→{_number(after)}"


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)


def _words(check: PatchCheck) -> str:
    """Return the compiler's output for a patch, or else the reason of its outcome."""
    return check.output or check_reason(check)
