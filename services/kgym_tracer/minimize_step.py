"""The handler of `minimize` steps: dump or trace of a crashed instance → the minimal trace."""

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

# `report-0.txt` and `dump-0.elf` belong to each other; so do those of a retry.
_DUMP = re.compile(r"(?:dump|trace)-(?P<instance>\d+)(?P<retry>-retry-\d+)?(?P<ending>\.[\w.]+)")


class Minimizer:
    """Performs `minimize` steps. Dumps are read by a confined process for each."""

    async def __call__(self, run: StepContext) -> MinimizeResult:
        """Perform one step.

        Raises UserError where the reproduce step left no dump with a crash
        report, or the dump cannot be read, and InfrastructureError where the
        process that reads it fails.
        """
        spec = run.spec(MinimizeSpec)
        instance, dump, report = _choose(run.input_artifacts("reproduce"), spec)
        folder = run.folder / "in"
        folder.mkdir()
        with run.stage("fetch"):
            source = await _fetch(run, dump, folder)
            await run.fetch("reproduce", report, folder / "report.txt")
            text = (folder / "report.txt").read_text(errors="replace")
            found = reports.parse(text.encode())
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
        failed = next((one for one in answer.parts if one.name == MINIMAL and one.error), None)
        if failed is not None:
            first = next(one.error for one in answer.parts if one.error)
            raise UserError("no_trace", f"no minimal trace out of {dump}: {first}")
        return MinimizeResult(
            instance=instance,
            title=found.title if found else "",
            trace=minimal_trace(out),
            parts=answer.parts,
            seconds={**answer.seconds, **run.seconds, "total": run.elapsed},
        )


def _choose(artifacts: Sequence[Artifact], spec: MinimizeSpec) -> tuple[int, str, str]:
    """Return the instance, and the names of its dump or trace and of its crash report."""
    names = [one.name for one in artifacts]
    for one in names:
        match = _DUMP.fullmatch(one)
        if match is None or spec.instance not in {None, int(match["instance"])}:
            continue
        report = InstanceArtifact.REPORT.of(f"{match['instance']}{match['retry'] or ''}")
        if report in names:
            return int(match["instance"]), one, report
    which = "any instance" if spec.instance is None else f"instance {spec.instance}"
    raise UserError("no_dump", f"the reproduce step left no dump with a crash report of {which}")


async def _fetch(run: StepContext, artifact: str, folder: Path) -> Path:
    path = folder / artifact
    await run.fetch("reproduce", artifact, path)
    plain = await unpacked(path, folder)
    if plain != path:
        path.unlink()
    return plain
