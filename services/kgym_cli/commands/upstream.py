"""`kgym upstream` and `kgym backports`: a patch on its way to maintainers and stable kernels."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click
from pydantic import Field
from rich.markup import escape

from kgym.api.outcomes import Outcome
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym.bugs import bundle as bugs
from kgym.bugs import patch_kit
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.kernel_run import KernelRun, RunOptions, check_patch, kept, run_kernel
from kgym.bugs.kernel_run_text import run_text
from kgym.bugs.patch_kit import PatchKit
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym.source import patch_mails, patching
from kgym_cli.agents.run_answer import write_kit
from kgym_cli.inputs.parameters import PATH, PATH_OR_STDIN, complete_bug
from kgym_cli.inputs.patch_files import patch_file
from kgym_cli.jobs.job_answer import exit_status
from kgym_cli.output import Exit, echo, json_option, leave, print_json, print_table, printed_json
from kgym_cli.output.answer import Answer
from kgym_cli.platforms import interruptible_work

_patch_argument = click.argument("path", metavar="PATCH", type=PATH_OR_STDIN)
_bug_argument = click.argument("bug", shell_complete=complete_bug)


class UpstreamAnswer(Answer):
    """Output of `kgym upstream`."""

    run: KernelRun
    patch: str | None = Field(description="mail for `git am` and b4; null if it resolves nothing")
    written: list[str] = Field(description="files of the patch kit")


@click.command()
@_patch_argument
@_bug_argument
@click.option(
    "--author",
    default="",
    show_default=False,
    help="Author, as `Name <mail>`.  [default: the patch's]",
)
@click.option("--out", type=PATH, help="Folder.  [default: NAME-upstream]")
@json_option(UpstreamAnswer)
def upstream(path: Path, bug: str, author: str, out: Path | None, as_json: bool) -> None:
    """Prove a patch, and write it as its maintainers want it; nothing is sent.

    PATCH is a file with a diff or a mail. It is tried as by `kgym run-kernel --thorough`. If it
    resolves BUG, the kit is a mail with the subsystem's prefix, tags and recipients, and a cover
    note with the evidence and with what checkpatch, sparse and clang-format find.

    If the command is interrupted or killed, repeat it: nothing runs twice. The exit status is 0 if
    there is a kit, 1 if the patch does not resolve the bug, 2 for bad input, 3 for no answer.
    """
    loaded, submitted = bugs.load(bug), patch_file(path)
    patch = submitted.diff or ""
    message, tags, own = patch_kit.authored(patch_mails.read(patch, str(path)))
    patch_kit.author_of(author or own)  # refused before anything runs
    options = RunOptions(TrialOptions(variants=True), upstream=True)

    async def work(client: AsyncClient, _: SweepOptions) -> tuple[KernelRun, PatchCheck | str]:
        run = await run_kernel(client, loaded, patch, options)
        resolved = run.outcome is Outcome.RESOLVED
        return run, await check_patch(client, loaded, patch, options) if resolved else ""

    run, check = interruptible_work.run(work, kept(loaded))
    mail, written = None, list[str]()
    if run.outcome is Outcome.RESOLVED:
        kit = PatchKit(
            bug=loaded.file,
            crash="" if message else loaded.file.title,
            diff=patching.as_diff(submitted),
            author=author or own,
            date=datetime.now(UTC),
            message=message,
            trailers=tags,
            notes=f"Tested by kGymSuite: {run.reason}",
            upstream=check.upstream if isinstance(check, PatchCheck) else None,
            cause=loaded.cause,
        )
        mail = kit.mail
        note = f"# {loaded.file.title}\n\n{run_text(run)}\n\n{kit.note}"
        written = write_kit(out or Path(f"{loaded.name}-upstream"), mail, note)
    if not printed_json(UpstreamAnswer(run=run, patch=mail, written=written), as_json):
        echo("\n".join([run_text(run), *(f"written: {name}" for name in written)]))
    leave(exit_status(run.whose))


class Backport(Answer):
    """A line of --json: the patch on a kernel; null is not known."""

    kernel: str
    reproduces: bool | None = Field(description="whether the kernel without the patch crashes")
    applies: Literal["as_is", "with_offsets", "no"] | None
    resolves: bool | None
    reason: str


@click.command()
@_patch_argument
@_bug_argument
@json_option(Backport)
def backports(path: Path, bug: str, as_json: bool) -> None:
    """Show on which stable kernels a bug reproduces, and a patch applies and resolves it.

    The kernels are the shared ones, linux-VERSION; each is built in full the first time.

    If the command is interrupted or killed, repeat it: nothing runs twice. With --json, each kernel
    is a line. The exit status is 0 if the patch resolves the bug wherever it reproduces, 1 if not,
    2 for bad input, 3 if a kernel has no answer.
    """
    patch, name = patch_file(path).diff or "", bugs.named(bug)[0]
    kernels = [kernel for kernel in bugs.kernels() if kernel.startswith("linux-")]
    loaded = {kernel: bugs.load(f"{name}@{kernel}") for kernel in kernels}
    rows: list[Backport] = []

    async def work(client: AsyncClient, _: SweepOptions) -> None:
        for kernel, each in loaded.items():  # in sequence: each needs a full build
            rows.append(await _backport(client, kernel, each, patch))
            if as_json:
                print_json(rows[-1])

    interruptible_work.run(work, SweepOptions("run-kernel"))
    if not as_json:
        columns = ("kernel", "reproduces", "applies", "resolves", "reason")
        print_table(*columns, rows=map(_cells, rows))
    if any(row.resolves is False for row in rows):
        leave(Exit.NEGATIVE)
    known = all(row.reproduces is False or row.resolves for row in rows)
    leave(Exit.OK if known else Exit.INFRASTRUCTURE)


async def _backport(client: AsyncClient, kernel: str, bug: Bug, patch: str) -> Backport:
    """Return the row of a kernel."""
    check = await check_patch(client, bug, patch)
    if isinstance(check, str):
        return Backport(kernel=kernel, reproduces=None, applies=None, resolves=None, reason=check)
    fits = check.outcome not in {PatchOutcome.DOES_NOT_APPLY, PatchOutcome.REFUSED}
    moved = any(note.endswith(" lines away") for note in check.notes)
    # The empty change shows whether the bug reproduces, even if the patch does not apply.
    shown = await run_kernel(client, bug, "")
    run = await run_kernel(client, bug, patch)
    verdict = shown.verdict or Verdict.INCONCLUSIVE
    reproduces = {Verdict.SAME_CRASH: True, Verdict.NO_CRASH: False}.get(verdict)
    unknown = not reproduces or run.outcome is Outcome.INCONCLUSIVE
    return Backport(
        kernel=kernel,
        reproduces=reproduces,
        applies="no" if not fits else "with_offsets" if moved else "as_is",
        resolves=None if unknown else run.outcome is Outcome.RESOLVED,
        reason=run.reason if reproduces else shown.reason,
    )


def _cells(row: Backport) -> tuple[str, ...]:
    known = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}
    reason = escape(row.reason)
    return (row.kernel, known[row.reproduces], row.applies or "-", known[row.resolves], reason)
