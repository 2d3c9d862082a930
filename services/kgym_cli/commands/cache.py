"""`kgym cache`: compiled kernels shared by all builds (SuiteCache)."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.markup import escape

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import BuildResult, BuildSpec
from kgym.api.suitecache import DroppedEntry, EntryFilter, EntryMaking, EntryPage, EntryView
from kgym.bugs import bundle
from kgym.client import Client
from kgym_cli.commands.trial_options import compiler_option
from kgym_cli.inputs.parameters import complete_bug
from kgym_cli.jobs.job_answer import FailedStep
from kgym_cli.jobs.job_progress import follow
from kgym_cli.jobs.outcome_table import counted
from kgym_cli.output import Exit, json_option, leave, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler

_PAGE = 200
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


class WarmedEntry(Answer):
    """A build that makes or finds an entry; `entry` is null until it has ended."""

    kernel: str
    job: int
    state: State
    entry: str | None
    cached: bool | None
    seconds: dict[str, float]
    failure: FailedStep | None

    @classmethod
    def of(cls, kernel: str, job: JobView) -> "WarmedEntry":
        """Return the answer of a job of one `build` step."""
        result = job.steps[0].result
        built = result if isinstance(result, BuildResult) else None
        return cls(
            kernel=kernel,
            job=job.id,
            state=job.state,
            entry=built and built.tree,
            cached=built and built.tree_cached,
            seconds=built.seconds if built else {},
            failure=FailedStep.of(job),
        )


@click.group()
def cache() -> None:
    """List, show, make and drop the compiled kernels from which builds start.

    An entry is one kernel: source, config and compiler. The first build that needs it makes it,
    usually from the most similar entry.
    """


@cache.command("list")
@click.option(
    "--text", help="Only entries with this text in name, release, compiler, source or worker."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, help="Most entries.")
@json_option(EntryPage)
def list_(text: str | None, limit: int, as_json: bool) -> None:
    """List the entries, most recently used first, with the results of their jobs."""
    with scheduler(work=False) as client:
        page = _listed(client, text, limit)
    if printed_json(page, as_json):
        return
    print_table(
        *("entry", "kernel", "made", "MB", "age", "jobs", "outcomes", "workers"),
        rows=map(_row, page.entries),
    )
    results.print(f"{page.number} entries, {page.bytes / 1e6:,.1f} MB stored")


@cache.command()
@click.argument("entry")
@json_option(EntryView)
def show(entry: str, as_json: bool) -> None:
    """Show ENTRY: where it is stored, how it was made, and the results of its jobs."""
    with scheduler(work=False) as client:
        view = client.suitecache_entry(entry)
    if printed_json(view, as_json):
        return
    for name, words in _shown(view):
        results.print(f"{name:10}{words}")


@cache.command()
@click.argument("kernels", nargs=-1, required=True, shell_complete=complete_bug)
@compiler_option
@click.option("--make-jobs", type=click.IntRange(1, 1024), help="Parallel jobs of make (-j).")
@click.option("--make-seconds", type=click.IntRange(1, 7 * 86400), help="Time limit of make.")
@click.option("--no-wait", is_flag=True, help="Only submit the builds.")
@json_option(list[WarmedEntry])
def warm(
    kernels: tuple[str, ...],
    compiler: str | None,
    make_jobs: int | None,
    make_seconds: int | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Make the entries of KERNELS before they are needed.

    Each is a shared kernel (linux-6.1), a bug, a bundle's folder, or BUG@KERNEL.
    The exit status is 0 if all entries exist, 2 if a kernel does not build, 3 if there is no
    answer.
    """
    asked = {"jobs": make_jobs, "make_seconds": make_seconds}
    pace = {name: value for name, value in asked.items() if value is not None}
    specs = [_spec(name, compiler).model_copy(update=pace) for name in kernels]
    with scheduler(work=not no_wait) as client:
        jobs = [client.submit(JobRequest(steps=[spec])) for spec in specs]
        if not no_wait:
            labels = kernels if len(jobs) > 1 else ("",)
            jobs = [follow(client, job, label=of) for job, of in zip(jobs, labels, strict=True)]
    entries = [WarmedEntry.of(name, job) for name, job in zip(kernels, jobs, strict=True)]
    if not printed_json(entries, as_json):
        rows = [
            (escape(warm.kernel), str(warm.job), str(warm.state), warm.entry or "", _outcome(warm))
            for warm in entries
        ]
        print_table("kernel", "job", "state", "entry", "", rows=rows)
    missing = [entry for entry in entries if entry.entry is None]
    if missing and not no_wait:
        causes = {entry.failure.cause if entry.failure else "infrastructure" for entry in missing}
        leave(Exit.USER if causes == {"user"} else Exit.INFRASTRUCTURE)


@cache.command()
@click.argument("entry")
@json_option(DroppedEntry)
def drop(entry: str, as_json: bool) -> None:
    """Remove ENTRY from storage and from workers' disks; needs the scope admin.

    This is refused while a step makes the entry or its jobs are unfinished. Workers learn of it
    with their next claim and remove their copies once these are unused.
    """
    with scheduler(work=False) as client:
        gone = client.drop_entry(entry)
    if printed_json(gone, as_json):
        return
    text = ", ".join(holder.worker for holder in gone.holders)
    more = f"; copies will be removed by: {text}" if text else ""
    results.print(f"removed {gone.name}, {gone.bytes / 1e6:,.1f} MB{more}")


def _outcome(entry: WarmedEntry) -> str:
    if entry.failure is not None:
        return escape(entry.failure.message)
    return "" if entry.cached is None else "existed" if entry.cached else "made"


def _listed(client: Client, text: str | None, limit: int) -> EntryPage:
    """Return the first `limit` entries as one page."""
    entries: list[EntryView] = []
    cursor: str | None = None
    while True:
        # The scheduler answers at most 200 entries at a time.
        size = min(_PAGE, limit - len(entries))
        page = client.suitecache(EntryFilter(text=text, cursor=cursor, limit=size))
        entries += page.entries
        cursor = page.next
        if cursor is None or len(entries) >= limit:
            return page.model_copy(update={"entries": entries})


def _row(entry: EntryView) -> Sequence[str]:
    return (
        escape(entry.name),
        escape(entry.kernel_release or ""),
        _made(entry.making),
        f"{entry.bytes / 1e6:,.1f}" if entry.bytes is not None else "",
        _age(entry.touched_at),
        str(entry.jobs),
        counted(entry.outcomes),
        str(len(entry.holders)),
    )


def _shown(entry: EntryView) -> list[tuple[str, str]]:
    """Return an entry's lines: a label and its text."""
    lines = [
        ("entry", entry.name),
        ("kernel", entry.kernel_release or "unknown: its description is not in storage"),
        ("source", entry.source_identity or ""),
        ("compiler", entry.compiler_version or ""),
        ("backports", ", ".join(entry.backports)),
        ("storage", f"{entry.bytes / 1e6:,.1f} MB, touched {_age(entry.touched_at)} ago")
        if entry.bytes is not None
        else ("storage", "missing"),
        ("workers", ", ".join(f"{held.worker} ({held.state})" for held in entry.holders)),
        ("jobs", counted(entry.outcomes) or "none"),
    ]
    if (making := entry.making) is not None:
        lines += [
            ("made", f"{_made(making)} at {making.made_at.astimezone():%Y-%m-%d %H:%M:%S}"),
            ("compiled", f"{making.objects} objects in {making.seconds:.0f} s"),
            ("why", making.reason),
            ("rehearsal", _rehearsal(making)),
        ]
    return [(name, words) for name, words in lines if words]


def _made(making: EntryMaking | None) -> str:
    if making is None:
        return ""
    if making.base is None:
        return "from scratch"
    differ = f"{making.files_changed} files, {making.symbols_changed} symbols"
    return f"from {making.base[:12]}: {differ}"


def _rehearsal(making: EntryMaking) -> str:
    if making.rehearsal == "none":
        return ""
    same = "the same kernel" if making.rehearsal == "equal" else "another kernel"
    return f"from {making.rehearsed} and from scratch: {same}"


def _age(moment: datetime | None) -> str:
    if moment is None:
        return ""
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _spec(name: str, compiler: str | None) -> BuildSpec:
    """Return the build of a kernel without patches, which makes its entry."""
    # `fresh`: without it, the memo of an earlier build would answer, though its entry may be gone.
    if name in bundle.kernels():
        spec = bundle.kernel(name)
        if compiler is not None:
            spec = spec.model_copy(update={"compiler": compiler})
    else:
        spec = bundle.load(name).built_by(compiler).build
    return spec.model_copy(update={"patches": [], "cache": "fresh"})
