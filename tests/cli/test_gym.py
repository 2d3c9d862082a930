"""`kgym.gym`: patches are rewarded by what their kernels do."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from kgym.api.steps import Finding, Severity, StepResult, Verdict
from kgym.bugs.reward import Reward
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.gym import Environment
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.test_run_kernel import Told
from tests.cli.test_sweep import BUG, diff
from tests.cli.worked import working
from tests.refused import refused
from tests.results import ran


class Kernels(Told):
    """A farm whose fixes are calibrated; a patch that is `lost` gets no verdict."""

    def reproduce(self, run: StepContext) -> StepResult:
        result = super().reproduce(run)
        if "lost" in getattr(run.assignment.inputs["build"].result, "tree", ""):
            return ran(Verdict.INCONCLUSIVE, "the host went away")
        return result.model_copy(update={"confidence": 0.9})


@pytest.mark.thorough
def test_episodes_side_by_side_end_with_a_fix_or_the_last_patch(tmp_path: Path) -> None:
    farm, data = Kernels(), tmp_path / "data"

    async def episode(client: AsyncClient, patches: Sequence[str]) -> list[tuple[float, bool]]:
        environment = Environment(client, patches=3)
        shown = await environment.reset(BUG)
        assert shown.left == 3
        assert "<crash_report>" in shown.text
        assert "<reproducer>" in shown.text
        steps = []
        for patch in patches:
            _, reward, done, info = await environment.step(patch)
            assert reward == info.reward.total
            steps.append((reward, done))
        assert done
        with refused("episode_over", kind=UserError):
            await environment.step(patches[0])
        return steps

    async def episodes() -> list[list[tuple[float, bool]]]:
        async with AsyncClient(platform.url) as client:
            many = [["", diff("broken"), "no patch"], [diff("useless"), diff("mends")]]
            done = await asyncio.gather(*(episode(client, patches) for patches in many))
            environment = Environment(client)
            await environment.reset(BUG)
            with refused("no_verdict", kind=InfrastructureError):
                await environment.step(diff("lost"))
            assert not (await environment.step("x" * (9 << 20)))[3].reward.compiles
            return done

    with Platform(data, work=False) as platform, working(platform, data, farm.answers):
        failed, fixed = asyncio.run(episodes())
    assert failed == [(0, False), (0, False), (0, True)]
    assert fixed == [(0.1, False), (0.94, True)]
    assert farm.done.count("show") == 1


@pytest.mark.parametrize(
    ("check", "total", "parts"),
    [
        ("variants", 0.3, (True, False, False)),
        ("detector", 0.4, (True, True, False)),
        ("", 0.7, (True, True, True)),  # not calibrated, so not sure
    ],
)
def test_the_parts_of_a_reward(check: str, total: float, parts: tuple[bool, ...]) -> None:
    blocking = {"severity": Severity.BLOCKING, "reason": "r", "message": "m"}
    findings = [Finding.model_validate({"check": check, **blocking})] if check else []
    reward = Reward.of("no_crash", findings, clean=not findings)
    assert (reward.no_crash, reward.variants, reward.clean) == parts
    assert reward.total == total
