"""What 32 environments get that try patches side by side, as in reinforcement learning.

Each submits a patch by REST, waits for what it comes to, and submits the next: a check, and a trial
if it compiles. They share the patches of `bench trials`, so some try what another has tried before.

steps_per_hour        of all environments together
uncompilable_s        median until a patch that does not compile has ended; `uncompilable_p95_s`
again_s               median of a patch that was tried before
fairness              steps of the environment with the fewest by those of the one with the most
"""

import asyncio
import logging
import random
import statistics
import uuid
from time import monotonic

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import CheckResult, PatchOutcome
from kgym.client import AsyncClient
from kgym.configs import data_folder
from kgym.host import process_logs
from tests.alone import platform_alone
from tests.bench.trial_patches import Kind, Tried, trial_patches
from tests.figures import parser, show

MOST = {"uncompilable_s": 1}
# The part of all steps that try a patch again.
AGAIN = 0.25


class Environments:
    """Environments that share a client and what they have tried."""

    def __init__(self, client: AsyncClient, shown: dict[str, int], until: float) -> None:
        self.client, self.shown, self.until = client, shown, until
        self.tried: list[Tried] = []
        self.seconds: dict[str, list[float]] = {"uncompilable": [], "again": [], "new": []}

    async def live(self, number: int, name: str) -> int:
        """Try patches until the time is over; return how many."""
        chance = random.Random(number)
        own = trial_patches(f"{name}-{number}")
        chance.shuffle(own)
        steps = 0
        while own and monotonic() < self.until:
            again = bool(self.tried) and chance.random() < AGAIN
            patch = chance.choice(self.tried) if again else own.pop()
            begun = monotonic()
            await self._step(patch)
            what = "uncompilable" if patch.kind is Kind.BROKEN else "again" if again else "new"
            self.seconds[what].append(monotonic() - begun)
            if not again:
                self.tried.append(patch)
            steps += 1
        return steps

    async def _step(self, tried: Tried) -> None:
        checked = await self._done(tried.bug.check([tried.patch]))
        result = checked.steps[0].result
        assert isinstance(result, CheckResult)
        if result.patches[0].outcome is PatchOutcome.COMPILES:
            await self._done(tried.bug.trial(tried.patch, self.shown[tried.bug.name]))

    async def _done(self, request: JobRequest) -> JobView:
        return await self.client.wait((await self.client.submit(request)).id)


async def measured(url: str, environments: int, minutes: float) -> dict[str, float]:
    """Run the environments for so long."""
    name = uuid.uuid4().hex[:12]
    async with AsyncClient(url) as client:
        bugs = {each.bug.name: each.bug for each in trial_patches(name)}
        shown = {}
        for bug in bugs.values():
            job = await client.wait((await client.submit(bug.shown())).id)
            shown[bug.name] = job.id
        begun = monotonic()
        together = Environments(client, shown, begun + 60 * minutes)
        steps = await asyncio.gather(*(together.live(n, name) for n in range(environments)))
        seconds = monotonic() - begun
    figures: dict[str, float] = {
        "environments": environments,
        "steps": sum(steps),
        "steps_per_hour": sum(steps) / seconds * 3600,
        "fairness": min(steps) / max(steps),
    }
    for what, taken in together.seconds.items():
        if len(taken) > 1:
            figures[f"{what}_s"] = statistics.median(taken)
            figures[f"{what}_p95_s"] = statistics.quantiles(taken, n=20)[-1]
    return figures


def main() -> None:
    """Measure, and print the figures."""
    words = parser(__doc__)
    words.add_argument("--environments", type=int, default=32)
    words.add_argument("--minutes", type=float, default=30)
    options = words.parse_args()
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    with platform_alone(data_folder()) as platform:
        show(
            asyncio.run(measured(platform.url, options.environments, options.minutes)),
            options,
            MOST,
        )


if __name__ == "__main__":
    main()
