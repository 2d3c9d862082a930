"""`minimize` steps: what a crashed instance left becomes a minimal trace and artifacts."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import MinimizeResult, MinimizeSpec, StepRef, Verdict
from kgym.api.worker_calls import Input
from kgym.errors import KgymError, UserError
from kgym.worker.context import StepContext
from kgym_tracer.decompression import unpacked
from kgym_tracer.minimize_step import Minimizer
from tests.conftest import NewRun
from tests.refused import refused
from tests.results import ran

pytestmark = pytest.mark.anyio

LINE = "           repro-31      [000] .....   100.{:06}: f: kgym:fs/a.c:{} {}\n"
REPORT = Path(__file__).with_name("report.txt").read_text()
TRACE = "".join(LINE.format(n, name, n) for n, name in enumerate(["first", "second", "third"]))


async def step(
    new_run: NewRun, folder: Path, left: dict[str, bytes], **spec: object
) -> StepContext:
    """Make an attempt at a step whose reproduce step left these files."""
    ref = StepRef(step=0)
    run = new_run(MinimizeSpec(reproduce=ref, build=ref, **spec))  # type: ignore[arg-type]
    artifacts = []
    for name, data in left.items():
        (folder / name).write_bytes(data)
        artifacts.append(await run.storage.put(f"steps/0/{name}", folder / name))
    result = ran(Verdict.SAME_CRASH, title="", crashed=2)
    run.assignment.inputs["reproduce"] = Input(result=result, artifacts=artifacts)
    return run


async def minimize(run: StepContext) -> MinimizeResult:
    return await Minimizer()(run)


@pytest.mark.thorough
async def test_a_trace_is_cut_down_and_kept(new_run: NewRun, tmp_path: Path) -> None:
    left = {"report-0.txt": REPORT.encode(), "trace-0.txt": TRACE.encode()}
    run = await step(new_run, tmp_path, left, files=["fs/a.c"])
    result = await minimize(run)
    assert result.title == "KASAN: use-after-free Read in third"
    assert [call.pattern[0].name for call in result.trace.calls] == ["first", "second", "third"]
    assert {artifact.name for artifact in run.artifacts} == {"trace.npz", "minimal.json"}


@pytest.mark.thorough
async def test_the_first_traced_report_is_taken(new_run: NewRun, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(TRACE)
    packed = tmp_path / "plain.zst"
    subprocess.run(["zstd", "-q", tmp_path / "plain", "-o", packed], check=True, timeout=30)
    left = {
        "trace-0.txt": TRACE.encode(),
        "report-1-retry-1.txt": REPORT.encode(),
        "trace-1-retry-1.txt.zst": packed.read_bytes(),
    }
    assert (await minimize(await step(new_run, tmp_path, left))).instance == 1


async def test_an_instance_without_a_dump_is_told(new_run: NewRun, tmp_path: Path) -> None:
    left = {"report-0.txt": REPORT.encode(), "trace-0.txt": TRACE.encode()}
    with pytest.raises(UserError, match="instance 3"):
        await minimize(await step(new_run, tmp_path, left, instance=3))


async def test_a_damaged_artifact_is_not_the_users_fault(new_run: NewRun, tmp_path: Path) -> None:
    packed = subprocess.run(
        ["zstd", "-c"], input=TRACE.encode(), capture_output=True, check=True, timeout=30
    ).stdout
    left = {"report-0.txt": REPORT.encode(), "trace-0.txt.zst": packed[:-8]}
    with pytest.raises(KgymError) as error:
        await minimize(await step(new_run, tmp_path, left))
    assert error.value.cause == "infrastructure"


@pytest.mark.thorough
@pytest.mark.parametrize("tool", ["zstd", "gzip"])
@pytest.mark.parametrize("content", ["holes", "noise"])
@pytest.mark.attack
async def test_a_dump_that_is_a_bomb_is_refused(tmp_path: Path, tool: str, content: str) -> None:
    plain = tmp_path / "dump-0.elf"
    with plain.open("wb") as file:
        if content == "holes":
            file.truncate(24 << 20)
        else:
            file.write((b"kernel" * 1000 + bytes(4096)) * 2400)
    packed = tmp_path / "dump-0.elf.packed"
    with packed.open("wb") as sink:
        subprocess.run([tool, "-qc", plain], check=True, timeout=60, stdout=sink)
    with refused("dump_too_large"):
        await unpacked(packed, tmp_path / "out", most=12 << 20)
    whole = await unpacked(packed, tmp_path / "whole")
    assert whole.read_bytes() == plain.read_bytes()
