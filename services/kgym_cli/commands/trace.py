"""`kgym trace`."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import click
from pydantic import Field, ValidationError

from kgym.api.steps import DumpPart, MinimalTrace, MinimizeArtifact
from kgym.crash import report as reports
from kgym.errors import KgymError, UserError
from kgym.host.proc import ProgramFailed
from kgym.host.scratch import scratch
from kgym.source import patching
from kgym.source.source_folder import SourceFolder
from kgym_cli.inputs import compressed_files
from kgym_cli.inputs.parameters import PATH
from kgym_cli.inputs.patch_files import patch_file
from kgym_cli.output import Exit, json_option, leave, people, printed_json, results
from kgym_cli.output.answer import Answer

_vmlinux = click.option("--vmlinux", type=PATH, help="The dump's kernel, with debug information.")


class ExtractAnswer(Answer):
    """Parts read from a dump, and where they were saved."""

    parts: list[DumpPart]
    seconds: dict[str, float]
    records: int
    lost: int
    notes: list[str]
    peak_rss_mb: float
    folder: str
    files: list[str]


class ScoreAnswer(Answer):
    """1 for each stage of the trace with all functions that the true fix edits, else 0."""

    edited: list[str]
    stages: dict[str, int]


class MinimizeAnswer(MinimalTrace):
    """A minimal trace, and facts about its source."""

    title: str
    seconds: dict[str, float] | None = Field(None, description="for a dump, by stage")
    notes: list[str]
    score: ScoreAnswer | None = Field(description="null without --fix")


class ScoresAnswer(Answer):
    """Sum of many bugs' scores."""

    bugs: int
    stages: dict[str, int]


_NEEDED = {MinimizeArtifact.TRACE, MinimizeArtifact.MINIMAL}


@click.group()
def trace() -> None:
    """Extract, minimize and show what a kernel executed before it crashed."""


@trace.command()
@click.argument("dump", type=PATH)
@_vmlinux
@click.option(
    "--report", "log", type=PATH, help="Console log or crash report, which names the task."
)
@click.option("--output", type=PATH, default=".", help="Target folder.")
@json_option(ExtractAnswer)
def extract(
    dump: Path, vmlinux: Path | None, log: Path | None, output: Path, as_json: bool
) -> None:
    """Extract trace, dmesg, the crashed task's stack and held locks from DUMP.

    It may be compressed, as artifacts are (.zst). A text of tracefs or `trace-cmd report`
    is converted to a trace.npz.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"--output {output}: {error.strerror or error}; name a folder"
        raise UserError("cannot_write", message) from error
    with tempfile.TemporaryDirectory(dir=output, prefix=".kgym-") as folder:
        text = None if log is None else _report_text(log).decode(errors="replace")
        parts_folder = Path(folder, "out")
        answer = _look_into(_plain(dump, folder), parts_folder, vmlinux, text)
        # A damaged part of a dump must not cost the others.
        kept = [extracted.name for extracted in answer.parts if extracted.error is None]
        for name in kept:
            (parts_folder / name).replace(output / name)
    if not printed_json(ExtractAnswer(**dict(answer), folder=str(output), files=kept), as_json):
        results.print(f"{answer.records} records, {answer.lost} lost; in {output}:")
        for part in answer.parts:
            results.print(f"  {part.name}: {part.error or 'read'}")
        for note in answer.notes:
            results.print(f"  {note}")
    if MinimizeArtifact.TRACE not in kept:
        leave(Exit.USER)


@trace.command()
@click.argument("source", type=PATH)
@click.argument("more", nargs=-1, metavar="")
@click.option("--report", "log", type=PATH, required=True, help="Console log or crash report.")
@click.option(
    "--files",
    multiple=True,
    metavar="F…",
    help="Candidate files of the localisation.  [default: all]",
)
@_vmlinux
@click.option("--limit", type=click.IntRange(1, 10_000), default=200)
@click.option("--past-repeats", is_flag=True, help="Continue past repeated patterns.")
@click.option("--fix", type=PATH, help="True fix, to score the trace against.")
@click.option("--source-tree", type=PATH, help="Kernel source to which --fix applies.")
@json_option(MinimizeAnswer)
def minimize(
    source: Path,
    more: tuple[str, ...],
    log: Path,
    files: tuple[str, ...],
    vmlinux: Path | None,
    limit: int,
    past_repeats: bool,
    fix: Path | None,
    source_tree: Path | None,
    as_json: bool,
) -> None:
    """Reduce SOURCE, a trace or a dump, to the calls that matter for the crash."""
    from kgym.trace import trace_files as stored  # noqa: PLC0415 - numpy takes 0.1 s
    from kgym.trace.minimal_trace import Crash  # noqa: PLC0415
    from kgym.trace.minimal_trace import minimize as cut_down  # noqa: PLC0415

    if more and not files:
        raise click.UsageError(f"unexpected: {' '.join(more)}")
    wanted = [name for words in (*files, *more) for name in words.split(",")]
    text = _report_text(log)
    crash = reports.parse(text)
    if crash is None:
        raise UserError("no_crash", f"{log} contains no crash report")
    about: dict[str, Any] = {}
    with scratch("trace") as folder:
        plain = _plain(source, folder)
        if stored.is_dump(plain):
            how = {"files": wanted, "limit": limit, "past_repeats": past_repeats}
            minimal, about = _minimize_dump(plain, vmlinux, text, how)
        else:
            loaded = stored.load(plain)
            minimal = cut_down(
                loaded, Crash.of(crash), wanted, limit=limit, past_repeats=past_repeats
            )
            about = {"notes": list(loaded.notes)}
    scored = None if fix is None else _score(minimal, fix, source_tree)
    if not printed_json(
        MinimizeAnswer(title=crash.title, **dict(minimal), **about, score=scored), as_json
    ):
        _show(minimal, crash.title)
        if scored is not None:
            stages = {str(stage): value for stage, value in scored.stages.items()}
            results.print(f"score: {stages}")
    if not minimal.calls:
        people.print("kgym: the trace has no records of these files")
        leave(Exit.NEGATIVE)


@trace.command()
@click.argument("path", type=PATH)
@click.option("--pid", type=int, help="Only this thread; for complete traces.")
@click.option("--last", type=click.IntRange(1), default=100)
def show(path: Path, pid: int | None, last: int) -> None:
    """Show output of `minimize --json` as a tree, or the last records of a complete trace."""
    minimal = _minimal(path)
    if minimal is not None:
        _show(minimal, str(json.loads(path.read_text()).get("title", "")))
        return
    from kgym.trace import trace_files as stored  # noqa: PLC0415
    from kgym_cli.output.trace_view import print_records  # noqa: PLC0415

    with scratch("trace") as folder:
        print_records(stored.load(_plain(path, folder)), pid, last)


@trace.command()
@click.argument("paths", metavar="RESULTS…", nargs=-1, required=True, type=PATH)
@json_option(ScoresAnswer)
def score(paths: tuple[Path, ...], as_json: bool) -> None:
    """Sum up outputs of `minimize --fix … --json`: the Complete Intersection Score."""
    from kgym.trace.score import Stage, total  # noqa: PLC0415

    scores = []
    for path in paths:
        try:
            stages = json.loads(path.read_text())["score"]["stages"]
            scores.append({Stage(name): int(value) for name, value in stages.items()})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                "no_score", f"{path} is not a result of `minimize --fix`: {error}"
            ) from error
    if printed_json(ScoresAnswer(bugs=len(scores), stages=dict(total(scores))), as_json):
        return
    for stage, value in total(scores).items():
        results.print(f"{stage:9} {value:4} of {len(scores)}")


def _plain(path: Path, folder: str | Path) -> Path:
    """Return the file, decompressed into `folder` if necessary."""
    from kgym_tracer.decompression import unpacked  # noqa: PLC0415

    try:
        return asyncio.run(unpacked(path, Path(folder)))
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    except ProgramFailed as error:
        raise UserError("cannot_read", f"{path} cannot be decompressed: {error.message}") from error


def _look_into(
    source: Path, out: Path, vmlinux: Path | None, report: str | None = None, how: Any = None
) -> Any:
    from kgym_tracer.reader_process import look_into  # noqa: PLC0415
    from kgym_tracer.reader_request import Minimize  # noqa: PLC0415

    if vmlinux is not None and not vmlinux.is_file():
        raise UserError("cannot_read", f"{vmlinux}: no such file")
    wanted = None if how is None else Minimize(**how)
    return asyncio.run(look_into(source, out, vmlinux=vmlinux, report=report, minimize=wanted))


def _minimize_dump(
    dump: Path, vmlinux: Path | None, report: bytes, how: dict[str, Any]
) -> tuple[MinimalTrace, dict[str, Any]]:
    from kgym_tracer.reader_process import minimal_trace  # noqa: PLC0415

    with scratch("trace") as folder:
        out = Path(folder, "out")
        text = report.decode(errors="replace")
        answer = _look_into(dump, out, vmlinux, text, how)
        for part in answer.parts:
            if part.error is not None and part.name in _NEEDED:
                raise UserError("no_trace", f"{dump}: {part.error}")
        return minimal_trace(out), {"seconds": answer.seconds, "notes": answer.notes}


def _report_text(path: Path) -> bytes:
    """Return a console log or report; a report in JSON is unwrapped."""
    data = compressed_files.read(path, whole=False)
    if data[:1] == b"{":
        try:
            return str(json.loads(data)["report"]).encode()
        except (ValueError, KeyError, TypeError):
            return data
    return data


def _minimal(path: Path) -> MinimalTrace | None:
    """Return the minimal trace in a file, or None if it is something else."""
    try:
        with path.open("rb") as file:
            if file.read(1) != b"{":
                return None
        values = json.loads(path.read_text())
        known = {name: values[name] for name in MinimalTrace.model_fields if name in values}
        return MinimalTrace.model_validate(known)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: {error.strerror or error}") from error
    except (ValueError, ValidationError) as error:
        raise UserError("bad_trace", f"{path} is not a minimal trace: {error}") from error


def _show(minimal: MinimalTrace, title: str) -> None:
    from kgym_cli.output.trace_view import tree  # noqa: PLC0415

    results.print(tree(minimal, title))


def _score(minimal: MinimalTrace, fix: Path, tree: Path | None) -> ScoreAnswer:
    from kgym.trace import score as scoring  # noqa: PLC0415

    if tree is None:
        raise click.UsageError("--fix needs --source-tree")
    edited = sorted(_edited(fix, tree))
    return ScoreAnswer(edited=edited, stages=dict(scoring.score(minimal, edited)))


def _edited(fix: Path, tree: Path) -> set[str]:
    """Return the functions that the fix changes in the tree."""
    from kgym.source.edited_functions import edited  # noqa: PLC0415

    source = SourceFolder(tree)
    try:
        changes = patching.apply(patch_file(fix), source).changes
    except KgymError as error:
        raise UserError(error.reason, f"the fix and the tree: {error.message}") from error
    names: set[str] = set()
    for change in changes:
        before, after = source.get(change.path, b""), change.content or b""
        names |= edited(before.decode(errors="replace"), after.decode(errors="replace"))
    return names
