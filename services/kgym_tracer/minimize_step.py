"""The handler of `minimize` steps: a crashed instance's dump or trace to its minimal trace."""

import re
from collections.abc import Sequence
from pathlib import Path

from kgym.api.jobs import Artifact
from kgym.api.steps import BuildArtifact, InstanceArtifact, MinimizeResult, MinimizeSpec
from kgym.crash import report as reports
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_tracer.decompression import unpacked
from kgym_tracer.reader_process import look_into, minimal_trace
from kgym_tracer.reader_request import MINIMAL, Minimize

# `dump-0.elf` pairs with `report-0.txt`, and `dump-0-retry-1.elf` with `report-0-retry-1.txt`.
_DUMP = re.compile(r"(?:dump|trace)-(?P<instance>\d+)(?P<retry>-retry-\d+)?(?P<ending>\.[\w.]+)")


class Minimizer:
    """Handler of `minimize` steps. Each dump is read in a confined process of its own."""

    async def __call__(self, run: StepContext) -> MinimizeResult:
        """Perform one step.

        Raises UserError if the reproduce step left no dump with a crash report, or the dump is
        unreadable, and InfrastructureError if the reading process fails.
        """
        spec = run.spec(MinimizeSpec)
        instance, dump, report = _choose(run.input_artifacts("reproduce"), spec)
        folder = run.folder / "in"
        folder.mkdir()
        with run.stage("fetch"):
            source = await _fetch(run, dump, folder)
            await run.fetch("reproduce", report, folder / "report.txt")
            text = (folder / "report.txt").read_text(errors="replace")
            crash = reports.parse(text.encode())
            vmlinux = None
            if dump.startswith("dump-"):
                vmlinux = folder / "vmlinux"
                await run.fetch("build", BuildArtifact.VMLINUX, vmlinux)
        run.progress("minimize")
        out = run.folder / "out"
        how = Minimize(files=spec.files, limit=spec.limit, past_repeats=spec.past_repeats)
        answer = await look_into(source, out, vmlinux=vmlinux, report=text, minimize=how)
        for part in answer.parts:
            run.log(f"{part.name}: {part.error or 'read'}")
            if part.error is None:
                await run.keep(out / part.name)
        for note in answer.notes:
            run.log(note)
        failed = next((part for part in answer.parts if part.name == MINIMAL and part.error), None)
        if failed is not None:
            first = next(part.error for part in answer.parts if part.error)
            raise UserError("no_trace", f"no minimal trace out of {dump}: {first}")
        return MinimizeResult(
            instance=instance,
            title=crash.title if crash else "",
            trace=minimal_trace(out),
            parts=answer.parts,
            seconds={**answer.seconds, **run.seconds, "total": run.elapsed},
        )


def _choose(artifacts: Sequence[Artifact], spec: MinimizeSpec) -> tuple[int, str, str]:
    """Choose an instance with a crash report; return its number, dump or trace, and report."""
    names = [artifact.name for artifact in artifacts]
    for name in names:
        match = _DUMP.fullmatch(name)
        if match is None or spec.instance not in {None, int(match["instance"])}:
            continue
        report = InstanceArtifact.REPORT.of(f"{match['instance']}{match['retry'] or ''}")
        if report in names:
            return int(match["instance"]), name, report
    which = "any instance" if spec.instance is None else f"instance {spec.instance}"
    raise UserError("no_dump", f"the reproduce step left no dump with a crash report of {which}")


async def _fetch(run: StepContext, artifact: str, folder: Path) -> Path:
    path = folder / artifact
    await run.fetch("reproduce", artifact, path)
    # The compressed file is removed at once: both together may not fit the disk.
    plain = await unpacked(path, folder)
    if plain != path:
        path.unlink()
    return plain
