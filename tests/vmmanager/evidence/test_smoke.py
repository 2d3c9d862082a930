"""What the smoke test says becomes findings."""

import subprocess
from pathlib import Path

import pytest

from kgym.api.steps import InstanceOutcome, InstanceResult
from kgym.host.sandbox import Sandbox
from kgym_vmmanager.evidence import smoke
from kgym_vmmanager.guest import guest_image


def failures(
    text: str, outcome: InstanceOutcome = InstanceOutcome.SURVIVED
) -> list[tuple[str, str]]:
    result = InstanceResult(number=2, outcome=outcome, detail="WARNING in f")
    return [(finding.reason, finding.message) for finding in smoke.findings(result, text)]


def test_a_kernel_that_does_all_gives_none() -> None:
    assert failures("ok mount\nskip tcp socket: Function not implemented\ndone\n") == []


def test_what_fails_is_a_finding() -> None:
    text = "ok mount\nfail fork fork: Cannot allocate memory\ndone\n"
    assert failures(text) == [("fork", "fork fork: Cannot allocate memory")]


@pytest.mark.thorough
def test_half_a_million_failures_are_a_few_findings() -> None:
    text = "".join(f"fail check-{number} {'x' * 900}\n" for number in range(500_000)) + "done\n"
    named = failures(text)
    assert len(named) <= 41
    assert named[-1][0] == "too_many"
    assert sum(len(reason) + len(message) for reason, message in named) < 20_000


@pytest.mark.parametrize(
    "line", ["fail", "fail ", f"fail {'x' * 90}", "fail \x1b[2J", "fail a/b c"]
)
def test_lines_that_no_smoke_test_prints_are_none(line: str) -> None:
    assert failures(f"{line}\ndone\n") == []


def test_a_test_that_breaks_off_is_a_finding() -> None:
    assert failures("ok mount\nok fo") == [
        ("broke_off", "the smoke test broke off; its last words: ok fo")
    ]


def test_a_crash_is_a_finding() -> None:
    assert failures("", InstanceOutcome.CRASH) == [
        ("crash", "the smoke test ended with crash: WARNING in f")
    ]


def test_one_that_was_stopped_tells_nothing() -> None:
    assert failures("", InstanceOutcome.STOPPED) == []


@pytest.mark.anyio
async def test_the_program_tells_what_the_kernel_refuses(tmp_path: Path) -> None:
    """A sandbox is a kernel that refuses to mount, and allows the rest."""
    source = Path(guest_image.__file__).parent / "inside" / "smoke.c"
    argv = ["gcc", "-static", "-pthread", "-O1", "-o", tmp_path / "smoke", source]
    subprocess.run(argv, check=True, timeout=60)
    tmp_path.chmod(0o755)
    box = Sandbox(readonly={"/in": tmp_path})
    done = await box.run(["/in/smoke"], timeout=60)
    failed = {reason for reason, _ in failures(done.text)}
    assert "mount" in failed
    assert failed <= {"mount", "exec"}  # whether there is a busybox is the host's
    assert "ok threads" in done.text
