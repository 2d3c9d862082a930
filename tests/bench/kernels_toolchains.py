"""What a toolchain image costs over the host's own compiler (see `kernels.py`)."""

import re
import statistics
import uuid
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from kgym.api.steps import BuildSpec
from kgym.api.worker_calls import Assignment
from kgym.bugs import bundle
from kgym.configs import CONFIGS, data_folder
from kgym.host.sandbox import Layer
from kgym.host.squashfs import Images
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.kbuild.kbuild import Kbuild, Output
from kgym_builder.kbuild.saved_commands import compile_words
from kgym_builder.kbuild.working_tree import Tree
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_builder.toolchains.toolchain import Toolchain
from kgym_builder.toolchains.toolchains import Toolchains

GOALS = {"toolchain_s": 0.1, "toolchain_ratio": 1.02}
HOST, IMAGE = "gcc-12", "bookworm/gcc-12"
OBJECT = "kernel/sched/core.o"
_TIMED = '"$@" >/dev/null 2>&1 || exit; times'
_TIMES = re.compile(r"(\d+)m([\d.]+)s")


async def measured(work: Path, rounds: int) -> dict[str, float]:
    """Take the image, and compile one object by both, in turns."""
    spec = bundle.load("watch-queue-filter").build.model_copy(update={"compiler": HOST})
    run = _run(work, spec)
    images = Images()
    with run.held:
        ours = await Toolchains(data_folder() / "cache").get(IMAGE, run)
        taken = [await _taken(run) for _ in range(rounds)]
        figures = {"toolchain_s": statistics.median(taken)}
        host = await Toolchains(data_folder() / "cache").get(HOST, run)
        if host.number == ours.number and not host.image:
            root = images.mount(None, run.held, ours.image)
            assert root is not None, images.refusal
            figures |= await _compared(spec, host, root, run, rounds)
    images.close()
    return figures


async def _taken(run: StepContext) -> float:
    """Return the seconds until a new worker has the compiler, mounted."""
    images = Images()
    with ExitStack() as held:
        start = monotonic()
        tools = await Toolchains(data_folder() / "cache").get(IMAGE, run)
        mounted = images.mount(None, held, tools.image)
        seconds = monotonic() - start
    images.close()
    assert mounted is not None, images.refusal
    return seconds


async def _compared(
    spec: BuildSpec, host: Toolchain, root: Layer, run: StepContext, rounds: int
) -> dict[str, float]:
    suite = SuiteCache(data_folder() / "cache", CONFIGS / "backports")
    tree = (await suite.published(spec, run)).tree
    kbuild = Kbuild(tree, host, Output(run.folder / "make.log"))
    await kbuild.configure(spec.config)
    await kbuild.make("prepare")
    await kbuild.make(OBJECT)
    saved = str(Path(OBJECT).with_name(f".{Path(OBJECT).name}.cmd"))
    line = (await tree.read([saved]))[saved].decode().splitlines()[0]
    words = compile_words(line.partition(":= ")[2])
    assert words is not None
    other = Tree(tree.overlay.lower, tree.overlay.folder, root=root)
    seconds: dict[str, list[float]] = {"host": [], "image": []}
    for round_ in range(rounds + 1):
        for name, tree_ in (("host", tree), ("image", other)):
            took = await _processor_seconds(tree_, words)
            if round_:  # the first one reads the compiler from the disk
                seconds[name].append(took)
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    return {
        "toolchain_compile_s": medians["image"],
        "toolchain_host_compile_s": medians["host"],
        "toolchain_ratio": statistics.median(
            image / own for image, own in zip(seconds["image"], seconds["host"], strict=True)
        ),
    }


async def _processor_seconds(tree: Tree, words: tuple[str, ...]) -> float:
    """Return what the compiler took of processors, which other work does not stretch."""
    done = await tree.run(["sh", "-c", _TIMED, "sh", *words])
    of_children = _TIMES.findall(done.text)[-2:]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in of_children)


def _run(work: Path, spec: BuildSpec) -> StepContext:
    assignment = Assignment(
        step_id=1, job_id=1, number=0, attempt=1, lease=uuid.uuid4(), spec=spec, inputs={}
    )
    return StepContext(assignment, work, LocalStorage(data_folder() / "artifacts"))
