"""What the smoke test says becomes findings."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import InstanceOutcome, InstanceResult
from kgym.host.sandbox import Sandbox
from kgym_vmmanager.evidence import smoke
from kgym_vmmanager.guest import guest_image


def failures(text: str, outcome: Any = InstanceOutcome.SURVIVED) -> list[tuple[str, str]]:
    result = InstanceResult(number=2, outcome=outcome, detail="WARNING in f")
    return [(finding.reason, finding.message) for finding in smoke.findings(result, text)]


FAILS = "fork: Cannot allocate memory"
CRASHED = "the smoke test ended with crash: WARNING in f"
BROKEN = "the smoke test broke off; its last words: ok fo"


@pytest.mark.parametrize(
    ("text", "outcome", "expected"),
    [
        ("ok mount\nskip tcp socket: not there\ndone\n", InstanceOutcome.SURVIVED, []),
        (f"fail fork {FAILS}\ndone\n", InstanceOutcome.SURVIVED, [("fork", f"fork {FAILS}")]),
        ("ok mount\nok fo", InstanceOutcome.SURVIVED, [("broke_off", BROKEN)]),
        ("", InstanceOutcome.CRASH, [("crash", CRASHED)]),
        ("", InstanceOutcome.STOPPED, []),
        # lines that no smoke test prints
        (f"fail\nfail \nfail {'x' * 90}\ndone\n", InstanceOutcome.SURVIVED, []),
        ("fail \x1b[2J\nfail a/b c\ndone\n", InstanceOutcome.SURVIVED, []),
    ],
)
def test_findings(text: str, outcome: InstanceOutcome, expected: list[tuple[str, str]]) -> None:
    """Each end of the smoke test has its findings."""
    assert failures(text, outcome) == expected


@pytest.mark.thorough
def test_half_a_million_failures_are_a_few_findings() -> None:
    text = "".join(f"fail check-{number} {'x' * 900}\n" for number in range(500_000)) + "done\n"
    named = failures(text)
    assert len(named) <= 41
    assert named[-1][0] == "too_many"
    assert sum(len(reason) + len(message) for reason, message in named) < 20_000


@pytest.mark.thorough
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
