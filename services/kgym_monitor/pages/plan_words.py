"""Descriptions of steps that have not run yet. Pure."""

from collections.abc import Sequence

from kgym.api.jobs import JobView, StepView, WorkerView
from kgym.api.states import State
from kgym.api.steps import (
    BuildSpec,
    CheckSpec,
    GitSource,
    KernelConfig,
    KernelSource,
    MinimizeSpec,
    PackageSource,
    Patch,
    ReproduceSpec,
    SourceSpec,
    StepRef,
    SyzkallerSpec,
)
from kgym_monitor.pages.wording import KINDS, duration, percent

# Most named patches, and characters of a commit id.
_NAMED = 3
_COMMIT = 12


def plan(job: JobView, step: StepView) -> str | None:
    """Return a description of the step in a few sentences; None if its spec is unknown."""
    words = None
    match step.spec:
        case BuildSpec() as spec:
            words = _build(spec)
        case CheckSpec() as spec:
            words = _check(spec)
        case ReproduceSpec() as spec:
            words = _reproduce(job, spec)
        case MinimizeSpec() as spec:
            words = _minimize(job, spec)
        case SourceSpec() as spec:
            patches = _patches(spec.patches)
            words = f"Makes {_source(spec.source)} readable{patches and f', with {patches}'}."
        case SyzkallerSpec() as spec:
            words = f"Builds syzkaller's programs from {_source(spec.source)}, unless they exist."
    return words


def _build(spec: BuildSpec) -> str:
    patches = _patches(spec.patches)
    sentences = [f"Builds {_kernel(spec.source, spec.config, spec.compiler)}"]
    sentences[0] += f", with {patches}." if patches else ", unpatched."
    if spec.instrument:
        sentences.append(f"Records calls of the functions in {_count(spec.instrument, 'file')}.")
    if spec.for_dump:
        sentences.append("Its memory can be saved after a crash.")
    if spec.review:
        sentences.append(f"Reviews {_count(spec.review, 'patch', 'patches')} on trial.")
    if spec.ahead and (spec.ahead.patches or spec.ahead.programs):
        sentences.append("First checks that patches and programs of later steps compile.")
    return " ".join(sentences)


def _check(spec: CheckSpec) -> str:
    kernel = _kernel(spec.source, spec.config, spec.compiler)
    base = f", each on top of {_patches(spec.base)}" if spec.base else ", each alone"
    return f"Checks whether {_patches(spec.patches)} apply to and compile on {kernel}{base}."


def _reproduce(job: JobView, spec: ReproduceSpec) -> str:
    programs = 1 + len(spec.others)
    kind = "a syzkaller program" if spec.reproducer.kind == "syz" else "a C program"
    what = kind if programs == 1 else f"{programs} programs in turn"
    vms = "1 VM" if spec.instances == 1 else f"{spec.instances:,} VMs"
    sentences = [f"Boots {vms} with the kernel of {_named(job, spec.build)}, and runs {what}"]
    sentences.append(f"on each for up to {duration(spec.time)}.")
    if spec.titles:
        sentences.append(f"Looks for “{spec.titles[0][:200]}”.")
    else:
        sentences.append("Looks for any crash.")
    if spec.confidence is not None:
        sure = percent(spec.confidence)
        sentences.append(
            f"Uses as many VMs and as much time as {sure} confidence needs, if possible."
        )
    if spec.baseline is not None:
        sentences.append(f"Compares with {_named(job, spec.baseline)}.")
    if spec.evidence:
        sentences.append("Collects evidence that the kernel could have reported the bug.")
    if spec.variants:
        sentences.append(_variants(job, spec))
    if spec.smoke:
        sentences.append("Smoke-tests the kernel.")
    if spec.dump != "none":
        sentences.append("Saves the memory of VMs that crash or hang.")
    if spec.required:
        sentences.append("Without a verdict, the job ends here.")
    return " ".join(sentences)


def _variants(job: JobView, spec: ReproduceSpec) -> str:
    if spec.baseline is None and spec.learned is not None:
        return "Learns what programs close to the reproducer do with the known fix."
    runs = f"Also runs {spec.variants:,} programs close to the reproducer."
    compared = spec.reference and f" Compares some with {_named(job, spec.reference)}."
    return runs + (compared or "")


def _minimize(job: JobView, spec: MinimizeSpec) -> str:
    which = "the first instance" if spec.instance is None else f"instance {spec.instance}"
    return (
        f"Reduces the trace of {which} that crashed in {_named(job, spec.reproduce)} to the calls"
        f" that matter for its report: at most {spec.limit:,}."
    )


def _kernel(source: KernelSource, config: KernelConfig, compiler: str) -> str:
    own = "its own config" if config.full is not None else config.base
    more = f" and {_count(config.fragments, 'fragment')}" if config.fragments else ""
    return f"{_source(source)} with {compiler}, {own}{more}"


def _source(source: KernelSource) -> str:
    if isinstance(source, GitSource):
        name = source.url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "git"
        return f"{name} at {source.commit[:_COMMIT]}"
    if isinstance(source, PackageSource):
        return f"the package {source.names[0]}"
    return source.url.rpartition("/")[2]


def _patches(patches: Sequence[Patch]) -> str:
    if not patches:
        return ""
    count = _count(patches, "patch", "patches")
    names = ", ".join(patch.name[:60] for patch in patches[:_NAMED])
    more = f", … ({len(patches) - _NAMED:,} more)" if len(patches) > _NAMED else ""
    return f"{count}: {names}{more}" if len(patches) > 1 else f"the patch {names}"


def _named(job: JobView, ref: StepRef) -> str:
    if ref.job is not None:
        return f"step {ref.step} of job {ref.job}"
    step = job.step(ref.step)
    return f"step {step.number} ({KINDS[step.kind]})" if step else f"step {ref.step}"


def _count(some: Sequence[object], singular: str, plural: str | None = None) -> str:
    return f"{len(some):,} {singular if len(some) == 1 else plural or singular + 's'}"


def queued(job: JobView) -> StepView | None:
    """Return the step that waits for a worker, if any."""
    return next((step for step in job.steps if step.state is State.QUEUED), None)


def workers(step: StepView, known: Sequence[WorkerView]) -> str:
    """Return a summary of the workers for a queued step, by state."""
    kind = KINDS[step.kind].lower()
    able = [worker for worker in known if step.kind in worker.kinds]
    live = [worker for worker in able if worker.state == "live"]
    slots = sum(worker.slots for worker in live)
    busy = sum(len(worker.running) for worker in live)
    parts = [f"{len(live)} live with {min(busy, slots)} of {slots} slots in use"] if live else []
    for state, words in (("draining", "draining, which take no more steps"), ("lost", "lost")):
        count = sum(worker.state == state for worker in able)
        parts += [f"{count} {words}"] if count else []
    return (
        f"Workers for {kind} steps: {'; '.join(parts)}."
        if parts
        else f"No worker runs {kind} steps."
    )
