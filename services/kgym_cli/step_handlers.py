"""The handler for each kind of step, in a worker process."""

from collections.abc import Callable, Collection
from pathlib import Path

from kgym.api.steps import StepKind
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host.budget import Budget
from kgym.worker.context import Handler
from kgym_builder.build.build_step import Builder
from kgym_builder.check.check_step import Checker
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.suitecache.suitecache import SuiteCache
from kgym_cli.settings import settings
from kgym_vmmanager.reproduce.reproduce_step import Reproduce


def handlers(
    kinds: Collection[StepKind], cache: Path, syzkaller: Path | None = None
) -> dict[StepKind, Handler]:
    """Return what does the steps of these kinds, with what they keep below `cache`.

    Kernel sources come from where the settings allow (`allowed_origins`).
    """
    budget = Budget.of_host()
    origins = Origins.named(settings().sources, settings().source_networks)
    suite = SuiteCache(cache, CONFIGS / "backports", origins=origins, budget=budget)
    makers: dict[StepKind, Callable[[], Handler]] = {
        StepKind.BUILD: lambda: Builder(suite),
        StepKind.CHECK: lambda: Checker(suite, cache),
        StepKind.REPRODUCE: lambda: Reproduce(cache, budget, syzkaller=syzkaller),
        StepKind.MINIMIZE: _minimizer,
    }
    for kind in kinds:
        if kind not in makers:
            raise UserError(
                "no_handler", f"nothing here does `{kind}` steps (there are: {', '.join(makers)})"
            )
    return {kind: makers[kind]() for kind in kinds}


def _minimizer() -> Handler:
    # Of an extra of its own: a worker that does no such steps needs no arrays.
    from kgym_tracer.minimize_step import Minimizer  # noqa: PLC0415

    return Minimizer()
