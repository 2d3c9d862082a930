"""Campaigns on the command line: equipment, estimate, run."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kgym import tasks
from kgym.client import AsyncClient
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.source.source_folder import SourceFolder
from kgym_benchmark.campaign.crashfixer import CrashFixer
from kgym_benchmark.campaign.runner import Equipment
from kgym_benchmark.campaign.subjects import Subject
from kgym_benchmark.kenv.trees import Published, Trees
from kgym_cli import extras
from kgym_cli.agents import agent_models
from kgym_cli.agents.agent_choice import request_of, service, with_agent
from kgym_cli.output import people
from kgym_cli.platforms.interruptible_work import interruptible
from kgym_cli.platforms.scheduler_choice import address
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym.api.agent.runs import Limits, RunRequest
    from kgym.client.agent_calls import AgentCalls

from kgym.bench import attempt_files
from kgym.bench.attempt_record import AttemptRecord
from kgym.bench.campaign import Campaign, Estimate, estimate, missing, plan
from kgym.bench.imported_patches import ImportedPatch
from kgym_benchmark.campaign import adapters, runner
from kgym_benchmark.campaign.runner import Summary
from kgym_benchmark.campaign.subjects import Subjects
from kgym_cli.output import Exit, print_table, results


def check(campaign: Campaign, subjects: Subjects, into: Path, home: Path) -> None:
    """Raise UserError unless everything that the agents name exists: tapes, folders, models.

    Their folders must not hold anything that names a fix: results, bundles, a dataset, the
    platform's data.
    """
    names = [campaign.dataset or "", *(bug.name for bug in subjects.bugs)]
    named = [settings().data, CONFIGS / "bugs", *(home / name for name in names if name)]
    shut = [into.resolve(), *(path.resolve() for path in named if path.exists())]
    # Any part of these may name a fix. An agent's folder may lie inside the other ones.
    whole = [path.resolve() for path in (into / "attempts", settings().data, CONFIGS / "bugs")]
    for entry in campaign.agents:
        if entry.kind == "program":
            command = adapters.command(entry, home)
            for place in filter(None, (*command.folders.values(), command.agent_config)):
                inside = [path for path in shut if path.is_relative_to(place)]
                inside += [place for path in whole if place.is_relative_to(path)]
                if inside:
                    message = f"{entry.name} could read {inside[0]}: give it a folder of its own"
                    raise UserError("bad_campaign", message)
            # Programs have no other network.
            if unknown := set(entry.models) - {"", *campaign.models}:
                message = f"{entry.name} cannot reach {min(unknown)}: list it in [models]"
                raise UserError("bad_campaign", message)
            continue
        extras.require("agent")
        from kgym_crashfixer import strategies  # noqa: PLC0415 - needs the extra

        for model in entry.models:
            agent_models.check(_placed(model, home))
        if entry.strategy is not None:
            strategies.load(entry.strategy)


def carried_out(
    campaign: Campaign,
    subjects: Subjects,
    into: Path,
    home: Path,
    imported: Sequence[ImportedPatch] = (),
) -> Summary:
    """Run a campaign until it is done or reaches a limit, or try patches made elsewhere."""
    models = [
        model for entry in campaign.agents if entry.kind == "crashfixer" for model in entry.models
    ]
    # A tape is a file of this machine, which a service could not open.
    own = any(model.startswith(agent_models.REPLAY) for model in models)

    async def work(equipment: Equipment) -> Summary:
        return await runner.Run(campaign, subjects, into, equipment, _tell, imported).go()

    return with_equipment(work, home, crashfixer=bool(models), own=own)


def status_of(summary: Summary) -> Exit:
    """Return the exit status for a campaign's summary."""
    if summary.failed:
        return Exit.INFRASTRUCTURE
    return Exit.NEGATIVE if summary.limit else Exit.OK


def estimated(
    campaign: Campaign, subjects: Subjects, into: Path, history: tuple[Path, ...]
) -> Estimate:
    """Return a campaign's open attempts and their estimated cost."""
    done = _attempts(into)
    planned = plan(campaign, [bug.id for bug in subjects.bugs])
    open_ = missing(planned, done)
    earlier = [*done, *(record for folder in history for record in _attempts(folder))]
    return estimate(campaign, open_, earlier, len(planned) - len(open_))


def _attempts(place: Path) -> list[AttemptRecord]:
    path = place / attempt_files.NAME if place.is_dir() else place
    return list(attempt_files.read(path)) if path.exists() else []


def show(estimate: Estimate) -> None:
    """Print an estimate for people."""
    rows = (
        (
            str(setup.setup),
            str(setup.attempts),
            _number(setup.seconds, "{:.0f}"),
            _number(setup.dollars, "{:.2f}"),
            str(setup.rests_on),
        )
        for setup in estimate.setups
    )
    print_table("setup", "attempts", "seconds", "dollars", "earlier attempts", rows=rows)
    hours, dollars = _number(estimate.hours, "{:.1f} h"), _number(estimate.dollars, "${:.2f}")
    results.print(f"{estimate.attempts} attempts to run, {estimate.done} done; {hours}, {dollars}")


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else form.format(value)


def _tell(news: AttemptRecord | str) -> None:
    if isinstance(news, str):
        people.print(f"no verdict: {news}", style="yellow")
        return
    took = f"{news.seconds:.0f} s" if news.seconds is not None else ""
    people.print(f"{news.bug}: {news.setup}, run {news.run}: {news.outcome} {took}", style="dim")


T = TypeVar("T")


class BugTrees:
    """Source trees of a campaign's bugs. A tree is kept while attempts use it, its source longer.

    A tree takes 2 GB, so a campaign cannot keep those of all its bugs.
    """

    def __init__(self, data: Path, cache: Path) -> None:
        self._data = data
        self._trees = Trees(cache / "kenv")
        self._held = ExitStack()
        self._sources: dict[str, asyncio.Task[Published]] = {}

    async def get(self, subject: Subject, held: ExitStack) -> SourceFolder:
        """Return a bug's tree, kept until `held` is closed."""
        report = partial(people.print, style="dim")
        return await self._trees.get(await self.source(subject), held, report)

    async def source(self, subject: Subject) -> Published:
        """Return a bug's source."""
        if subject.name not in self._sources:
            self._sources[subject.name] = asyncio.create_task(self._source(subject))
        # Attempts on the same bug share one task. Shielded: a cancelled attempt must not take the
        # source from the others.
        return await asyncio.shield(self._sources[subject.name])

    async def close(self) -> None:
        """Release all sources."""
        await tasks.end(self._sources.values())
        await asyncio.to_thread(self._held.close)

    async def _source(self, subject: Subject) -> Published:
        from kgym_cli.bugs.source_tree import source_of  # noqa: PLC0415 - its imports take 0.3 s

        return await source_of(subject.bug, self._data, self._held)


def with_equipment(
    work: Callable[[Equipment], Awaitable[T]], home: Path, *, crashfixer: bool, own: bool
) -> T:
    """Call `work` with a platform and, with `crashfixer`, an agent; with `own`, never a service."""

    def request(
        name: str, strategy: str | None, model: str, limits: "Limits", files: tuple[str, ...]
    ) -> "RunRequest":
        here = own or service() is None
        return request_of(name, strategy, _placed(model, home), True, files, limits, here)

    with address(work=True) as (url, token):

        async def equipped(agent: "AgentCalls | None") -> T:
            trees = BugTrees(settings().data, settings().cache)
            try:
                async with AsyncClient(url, token) as client:
                    fixer = CrashFixer(agent, request) if agent is not None else None
                    key = settings().environment.get
                    return await work(Equipment(client, trees.get, trees.source, home, key, fixer))
            finally:
                await trees.close()

        if crashfixer:
            return with_agent(equipped, work=True, own=own)
        return interruptible(equipped(None))


def _placed(model: str, home: Path) -> str:
    """Return a model's name; a tape's path is relative to the campaign's folder."""
    tape = model.removeprefix(agent_models.REPLAY)
    return model if tape == model else f"{agent_models.REPLAY}{home / tape}"
