"""The run of a campaign: all its attempts, each made once, even if processes are killed.

The folder of a campaign:

    dataset.json, bugs.jsonl  its bugs, as a dataset
    attempts.jsonl            a durable record of each finished attempt
    failed.jsonl              failed tries at attempts, with their reasons
    campaign.json             the options that attempts must share to be comparable
    attempts/BUG/SETUP/RUN/   patch.txt, traj.json, log.txt, trajectory.atif.json and ended.json
"""

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from kgym import tasks
from kgym.api.steps import Strict
from kgym.atomic_files import locked
from kgym.bench import atif, attempt_files
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt, Outcome, Setup
from kgym.bench.campaign import Campaign, Planned, missing, plan
from kgym.bench.imported_patches import ImportedPatch
from kgym.bugs.bug import TrialOptions
from kgym.bugs.kernel_run import RunOptions, run_kernel
from kgym.client import AsyncClient
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_benchmark.campaign import adapters, crashfixer, verification
from kgym_benchmark.campaign.attempt import (
    AGENT_FAILED,
    ATIF,
    AgentEnded,
    Attempt,
    Tree,
    in_environment,
    write,
)
from kgym_benchmark.campaign.crashfixer import CrashFixer
from kgym_benchmark.campaign.subjects import Subject, Subjects
from kgym_benchmark.campaign.verification import Verification, Verified
from kgym_benchmark.kenv.environment import LOG, TRAJECTORY

ABOUT, SPENT = "campaign.json", "spent.json"
# Maximum number of commands that try for a verdict on a patch, whose outcome then is unknown; and
# that run an agent that fails at once, which then counts as an attempt: agents must not shun hard
# bugs.
TRIES = 3
_SLUG = re.compile(r"[^\w.-]+")


class Summary(Strict):
    """The result of a run of a campaign."""

    name: str
    attempts: int = Field(description="of the whole campaign")
    done: int = Field(description="with a record")
    made: int = Field(description="by this run")
    failed: int = Field(description="without a verdict: the same command makes them again")
    limit: str | None = Field(None, description="that was reached before all were made")
    problems: list[str] = Field([], description="first reasons for missing verdicts")

    def __str__(self) -> str:
        """Return the counts in words."""
        failed = f"; {self.failed} failed" if self.failed else ""
        done = f"{self.done} of {self.attempts} attempts done"
        return f"{self.name}: {done}, {self.made} of them now{failed}"


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a campaign runs with."""

    client: AsyncClient
    tree: Tree
    """Returns the tree of a bug, which agents share: nothing else reads it."""
    source: Callable[[Subject], Awaitable[Mapping[str, bytes]]]
    """Returns the same files without reading that tree."""
    home: Path
    """The folder of the description, to which its paths are relative."""
    key: Callable[[str], str | None] = lambda _: None
    """Returns the key of a model, given the name of its variable."""
    crashfixer: CrashFixer | None = None


# Called with each record, and with the reason for each missing verdict.
Tell = Callable[[AttemptRecord | str], None]


class Run:
    """One run of a campaign in its folder."""

    def __init__(
        self,
        campaign: Campaign,
        subjects: Subjects,
        folder: Path,
        equipment: Equipment,
        tell: Tell,
        imported: Sequence[ImportedPatch] = (),
    ) -> None:
        self._campaign = campaign
        self._imported = imported
        self._subjects = {bug.id: bug for bug in subjects.bugs}
        self._folder = folder
        self._equipment = equipment
        self._tell = tell
        self._reports: dict[str, asyncio.Task[str]] = {}
        self._problems: list[str] = []
        self._made = self._failed = 0
        self._limit: str | None = None
        # Attempts in progress.
        self._working = Counter[Setup]()
        self._moved = asyncio.Event()

    async def go(self) -> Summary:
        """Make the missing attempts; raise UserError `campaign_in_use`, `campaign_changed`."""
        self._commands = {
            agent.name + agent.settings: adapters.command(agent, self._equipment.home)
            for agent in self._campaign.agents
            if agent.kind == "program"
        }
        message = f"another command runs the campaign in {self._folder}"
        with locked(self._folder, UserError("campaign_in_use", message)):
            await asyncio.to_thread(
                begin, self._folder, self._campaign, list(self._subjects.values())
            )
            log = self._folder / attempt_files.NAME
            for path in (log, self._folder / attempt_files.FAILED):
                await asyncio.to_thread(attempt_files.mend, path)
            self._records = list(attempt_files.read(log)) if log.exists() else []
            self._tries = Counter(
                (failed.bug, failed.setup, failed.run)
                for failed in attempt_files.read_failed(self._folder)
                if failed.reason.partition(":")[0] in {verification.NO_VERDICT, AGENT_FAILED}
            )
            planned = await asyncio.to_thread(self._plan)
            open_ = missing(planned, self._records)
            trial = verification.trial_of(self._campaign)
            self._verification = Verification(self._equipment.client, trial, self._records)
            self._clock = _Clock(self._folder / SPENT)
            try:
                await self._all(open_)
            finally:
                await self._verification.close()
                await tasks.end(self._reports.values())
                self._clock.keep()
        return Summary(
            name=self._campaign.name,
            attempts=len(planned),
            done=len(planned) - len(open_) + self._made,
            made=self._made,
            failed=self._failed,
            limit=self._limit,
            problems=self._problems[:10],
        )

    def _plan(self) -> list[Planned]:
        """Return the campaign's attempts; those made elsewhere get their folders here.

        Raises UserError `campaign_changed` if an attempt has another patch there.
        """
        if not self._imported:
            return plan(self._campaign, list(self._subjects))
        # Never run: each of these attempts has already ended.
        entry = self._campaign.agents[0]
        planned = []
        for patch in self._imported:
            planned.append(Planned(patch.bug, patch.setup, patch.run, entry))
            attempt = self._attempt(planned[-1], "")
            if attempt.ended() is None:
                attempt.folder.mkdir(parents=True, exist_ok=True)
                if patch.trajectory is not None:
                    write(attempt.folder / TRAJECTORY, patch.trajectory)
                attempt.keep(AgentEnded(**patch.costs, account=patch.account), patch.diff)
            elif attempt.patch != patch.diff:
                which = f"{patch.setup} on {patch.bug}, run {patch.run}"
                message = f"{self._folder} holds another patch of {which}: name a new folder"
                raise UserError("campaign_changed", message)
        return planned

    def _attempt(self, planned: Planned, report: str) -> Attempt:
        subject = self._subjects[planned.bug]
        folder = self._folder / "attempts" / place(planned.bug) / slug(planned.setup)
        key = self._equipment.key
        return Attempt(self._campaign, planned, subject, report, folder / str(planned.run), key)

    async def _all(self, open_: list[Planned]) -> None:
        """Make the attempts in order, up to `parallel` at a time."""
        turn = asyncio.Semaphore(self._campaign.parallel)
        async with asyncio.TaskGroup() as group:
            # Sequential acquisition keeps the order of the plan, which is fair.
            for planned in open_:
                await turn.acquire()
                if not await self._has_room(planned.setup):
                    turn.release()
                    continue
                self._working[planned.setup] += 1
                group.create_task(self._made_in_turn(planned, turn))

    async def _made_in_turn(self, planned: Planned, turn: asyncio.Semaphore) -> None:
        try:
            record = await self._record(planned)
        except KgymError as error:
            await self._fail(planned, error)
        else:
            log = self._folder / attempt_files.NAME
            await asyncio.to_thread(attempt_files.append, log, record)
            self._records.append(record)
            self._made += 1
            self._tell(record)
        finally:
            # After each attempt, so that a kill loses the time of the running ones only.
            self._clock.keep()
            self._working[planned.setup] -= 1
            self._moved.set()
            turn.release()

    async def _fail(self, planned: Planned, error: KgymError) -> None:
        self._failed += 1
        reason = f"{error.reason}: {error.message}"[:1000]
        # Recorded, so that the leaderboard does not omit setups whose attempts failed.
        failed = FailedAttempt(bug=planned.bug, setup=planned.setup, run=planned.run, reason=reason)
        await asyncio.to_thread(attempt_files.append, self._folder / attempt_files.FAILED, failed)
        problem = f"{planned.bug}, {planned.setup}, run {planned.run}: {reason}"
        self._problems.append(problem[:1000])
        self._tell(problem)

    async def _record(self, planned: Planned) -> AttemptRecord:
        subject = self._subjects[planned.bug]
        # Imported patches, too, are tried only if their bug shows without them.
        attempt = self._attempt(planned, await self._report(subject))
        ended = attempt.ended() or await self._worked(attempt)
        diff = attempt.patch
        if not diff.strip():
            return _recorded(planned, ended, Verified(Outcome.BAD))
        # Compared outside the environment and after the agent has ended, with files that it could
        # not change.
        source = await self._equipment.source(subject)
        change = await verification.change_of(diff, source)
        try:
            verified = await self._verification.verify(subject, diff, change)
        except InfrastructureError as error:
            tries = self._try(planned)
            if error.reason != verification.NO_VERDICT or tries < TRIES:
                raise
            # Without a record, the campaign would never be done.
            verified = Verified(Outcome.UNKNOWN)
            why = f"no verdict in {tries} tries: {error.message}"
            ended = ended.model_copy(update={"error": ended.error or why[:1000]})
        record = _recorded(planned, ended, verified, diff, change)
        return await verification.with_overlap(record, subject.bug.fix, source)

    def _try(self, planned: Planned) -> int:
        return self._tries[planned.bug, planned.setup, planned.run] + 1

    async def _worked(self, attempt: Attempt) -> AgentEnded:
        """Run the agent."""
        entry, equipment = attempt.planned.entry, self._equipment
        if entry.kind == "crashfixer":
            if equipment.crashfixer is None:
                raise UserError("no_agent", "no agent service to run CrashFixer: name one")
            return await crashfixer.worked(attempt, equipment.crashfixer)
        command = self._commands[entry.name + entry.settings]
        last_try = self._try(attempt.planned) == TRIES
        ended = await in_environment(
            attempt, command, equipment.client, equipment.tree, last_try=last_try
        )
        await asyncio.to_thread(_write_atif, attempt, command.form, ended)
        return ended

    async def _report(self, subject: Subject) -> str:
        """Return the crash report of a bug as seen by the platform, once for all attempts."""
        if subject.id not in self._reports:
            self._reports[subject.id] = asyncio.create_task(self._shown(subject))
        return await asyncio.shield(self._reports[subject.id])

    async def _shown(self, subject: Subject) -> str:
        trial = TrialOptions(self._campaign.feedback_instances, self._campaign.time)
        run = await run_kernel(self._equipment.client, subject.bug, "", RunOptions(trial=trial))
        if run.title is None:
            raise InfrastructureError("not_shown", f"{subject.id} does not show: {run.reason}")
        return run.report or run.title

    async def _has_room(self, setup: Setup) -> bool:
        """Return whether another attempt of a setup may be made.

        Wait until the attempts in progress are certain to leave a part of the setup's share: each
        may take up to its limit, or all of the share if it has none.
        """
        each = self._campaign.attempt.dollars
        while not self._is_over(setup):
            working = self._working[setup]
            if not working or self._share is None or not setup.model:
                return True
            if each is not None and self._spent(setup) + working * each < self._share:
                return True
            self._moved.clear()
            await self._moved.wait()
        return False

    @property
    def _share(self) -> float | None:
        """The dollars of a setup; None without a limit."""
        dollars = self._campaign.limits.dollars
        return None if dollars is None else dollars / len(list(self._campaign.setups()))

    def _spent(self, setup: Setup) -> float:
        return sum(record.dollars or 0 for record in self._records if record.setup == setup)

    def _is_over(self, setup: Setup) -> bool:
        """Return whether a limit forbids another attempt of a setup."""
        limits = self._campaign.limits
        if limits.hours is not None and self._clock.hours >= limits.hours:
            self._limit = f"{limits.hours:g} hours"
            return True
        if self._share is None:
            return False
        made = [record for record in self._records if record.setup == setup]
        if any(record.dollars is None for record in made):
            self._limit = f"{setup}: the cost of an attempt is unknown"
            return True
        if made and self._spent(setup) >= self._share:
            self._limit = f"{setup}: its share of ${limits.dollars:g}"
            return True
        return False


class _Clock:
    """The duration of a campaign, summed over all its runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = 0.0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            self._before = float(json.loads(path.read_text())["seconds"])
        self._begun = time.monotonic()

    @property
    def hours(self) -> float:
        return (self._before + time.monotonic() - self._begun) / 3600

    def keep(self) -> None:
        write(self._path, json.dumps({"seconds": round(self.hours * 3600, 1)}).encode())


def begin(folder: Path, campaign: Campaign, subjects: list[Subject]) -> None:
    """Record the campaign in its folder; raise UserError `campaign_changed` if it is another."""
    about = folder / ABOUT
    if about.exists() and about.read_text() != campaign.how:
        raise UserError(
            "campaign_changed",
            f"{folder} holds attempts made with other options ({about.read_text()}): results would"
            " not be comparable. Give this campaign another folder",
        )
    write(about, campaign.how.encode())
    dataset = Subjects(tuple(subjects)).dataset(campaign.name)
    try:
        dataset.save(folder)
    except UserError as error:
        if error.reason != "dataset_exists":
            raise
        raise UserError(
            "campaign_changed",
            f"{folder} holds attempts on other bugs, or on other bugs of the same names; give this"
            " campaign another folder",
        ) from error


def attempt_folder(bug: str, setup: Setup, run: int) -> Path:
    """Return the folder of an attempt in that of its campaign."""
    return Path("attempts", place(bug), slug(setup), str(run))


def slug(setup: Setup) -> str:
    """Return the name of a setup's folder."""
    # The readable part is cut and may be ambiguous: the digest makes it unique.
    digest = hashlib.sha256(setup.model_dump_json().encode()).hexdigest()[:8]
    return f"{_slug(str(setup))[:60]}-{digest}"


def place(bug: str) -> str:
    """Return the name of a bug's folder, which is unique."""
    plain = _slug(bug)
    digest = hashlib.sha256(bug.encode()).hexdigest()[:8]
    return plain if plain == bug else f"{plain}-{digest}"


def _slug(text: str) -> str:
    return _SLUG.sub("-", text)


def _recorded(
    planned: Planned,
    ended: AgentEnded,
    verified: Verified,
    diff: str | None = None,
    change: str | None = None,
) -> AttemptRecord:
    return AttemptRecord(
        bug=planned.bug,
        setup=planned.setup,
        run=planned.run,
        outcome=verified.outcome,
        diff=diff,
        patch=change,
        crashed=verified.crashed,
        completed=verified.completed,
        clean=verified.clean,
        equivalence=verified.equivalence,
        **ended.model_dump(),
    )


def _write_atif(attempt: Attempt, form: str, ended: AgentEnded) -> None:
    folder, setup = attempt.folder, attempt.planned.setup
    path = folder / TRAJECTORY
    trajectory = atif.trajectory(
        form,
        path.read_bytes() if path.exists() else None,
        log=(folder / LOG).read_bytes()[-atif.MOST_LOG :],
        agent=atif.Agent(name=setup.agent, version=setup.settings or "-", model_name=setup.model),
        session=f"{attempt.planned.bug}-{slug(setup)}-{attempt.planned.run}",
        dollars=ended.dollars,
    )
    write(folder / ATIF, trajectory.model_dump_json(exclude_none=True, indent=1).encode())
