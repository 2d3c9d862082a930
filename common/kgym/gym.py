"""Patches on bugs as an environment for reinforcement learning: reset, step, observation, reward.

Environments are cheap: a platform queues their kernels, so hundreds may share a client.
"""

from dataclasses import dataclass

from pydantic import Field

from kgym.api.outcomes import Outcome
from kgym.api.steps import Strict
from kgym.bugs import bundle
from kgym.bugs.bug import Bug, TrialOptions
from kgym.bugs.kernel_run import Change, KernelRun, RunOptions, as_patch, is_empty, run_kernel
from kgym.bugs.kernel_run_text import quoted, run_text
from kgym.bugs.reward import Reward
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, UserError
from kgym.source.comments import bare_program

# Characters of the reproducer in an observation.
_PROGRAM = 20_000
# Outcomes of patches that make another kernel.
_COMPILED = {Outcome.RESOLVED, Outcome.NOT_RESOLVED}
# With variants: a patch that mends the reproducer's one path must not get the whole reward.
_OPTIONS = RunOptions(trial=TrialOptions(variants=True))


class Observation(Strict):
    """What an agent sees."""

    text: str = Field(description="of `reset`: the crash and the reproducer; of `step`: the answer")
    left: int = Field(description="patches that it may still try")


@dataclass(frozen=True, slots=True)
class Info:
    """The details of a step."""

    reward: Reward
    run: KernelRun | None = None
    """None for a text that cannot be a patch."""


class Environment:
    """Episodes on bugs: up to `patches` patches each, tried on a platform's kernels.

    Args:
        client: The scheduler's client, which environments may share.
        patches: Patches of an episode.
        options: How patches are tried.
    """

    def __init__(
        self, client: AsyncClient, patches: int = 1, options: RunOptions = _OPTIONS
    ) -> None:
        self._client, self._patches, self._options = client, patches, options
        self._bug: Bug | None = None
        self._left = 0

    async def reset(self, bug: str | Bug) -> Observation:
        """Begin an episode: crash the kernel without a patch, and show how.

        Raises InfrastructureError `not_shown` if it does not crash, UserError for an unknown bug.
        """
        self._left = 0
        loaded = bundle.load(bug) if isinstance(bug, str) else bug
        run = await run_kernel(self._client, loaded, "", self._options)
        if run.title is None:
            raise InfrastructureError("not_shown", f"{loaded.name} does not show: {run.reason}")
        self._bug, self._left = loaded, self._patches
        program = quoted("reproducer", bare_program(loaded.reproducers[0].text), _PROGRAM)
        return Observation(text=f"{run_text(run)}\n{program}", left=self._left)

    async def step(self, patch: Change) -> tuple[Observation, float, bool, Info]:
        """Try a diff, or edits; return observation, reward, whether the episode is over, details.

        A patch that does not apply or compile ends the step after about a second: no kernel is
        built. An episode is done with a patch that resolves the bug, or with its last one.

        Raises InfrastructureError `no_verdict` if the platform has no answer: such a step does not
        count, and may be repeated. Raises UserError `episode_over` before a `reset`.
        """
        if self._bug is None or not self._left:
            raise UserError("episode_over", "the episode is over: call reset")
        try:
            as_patch(patch)
        except UserError as error:  # a model may write anything
            return self._answered(f"no patch: {error.message}", Info(Reward(compiles=False)))
        run = await run_kernel(self._client, self._bug, patch, self._options)
        if run.outcome is Outcome.INCONCLUSIVE:
            raise InfrastructureError("no_verdict", run.reason)
        reward = Reward(compiles=False)
        # An empty patch is answered with the crash: it must not pass for one that compiles.
        if run.outcome in _COMPILED and not is_empty(patch):
            clean = run.outcome is Outcome.RESOLVED
            reward = Reward.of(run.verdict, run.findings, clean=clean, confidence=run.confidence)
        return self._answered(run_text(run), Info(reward, run))

    def _answered(self, text: str, info: Info) -> tuple[Observation, float, bool, Info]:
        self._left = 0 if info.reward.clean else self._left - 1
        observation = Observation(text=text, left=self._left)
        return observation, info.reward.total, not self._left, info
