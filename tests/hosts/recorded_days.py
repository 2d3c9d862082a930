"""Days of a farm: steps as they come in the rhythm of people, and in sweeps of thousands."""

import math
import random

from kgym.api.steps import StepKind
from kgym_hosts.scaling.decisions import Limits, PoolLimits
from kgym_hosts.scaling.recording import RecordedStep

DAY = 86_400.0


def farm(most: int = 1000, dollars: float | None = None) -> Limits:
    """A farm of two pools: builds on large hosts, VMs on others."""
    build = (StepKind.BUILD, StepKind.CHECK)
    return Limits(
        pools=(
            PoolLimits("build", build, 2, 1, most // 4, 0.4, 60.0),
            PoolLimits("vms", (StepKind.REPRODUCE,), 4, 1, most - most // 4, 0.2, 60.0),
        ),
        wait_seconds=120.0,
        idle_seconds=600.0,
        most_dollars_per_hour=dollars,
    )


def day(jobs: int, seed: int = 1) -> list[RecordedStep]:
    """Half of the jobs come over the day, most in the afternoon; half in four sweeps."""
    chance = random.Random(seed)
    steps = []
    for number in range(jobs):
        if number % 2:
            at = min(
                DAY - 1, (0, 7.5, 13, 22)[number // 2 % 4] * 3600 + chance.expovariate(1 / 600)
            )
        else:
            while True:
                at = chance.uniform(0, DAY)
                if chance.random() < 0.55 - 0.45 * math.cos(2 * math.pi * (at / DAY - 0.1)):
                    break
        build = chance.lognormvariate(math.log(20), 0.8)
        run = chance.lognormvariate(math.log(90), 0.7)
        steps.append(RecordedStep(at, StepKind.BUILD, build))
        steps.append(RecordedStep(at + build, StepKind.REPRODUCE, run))
    return sorted(steps, key=lambda step: step.at)
