"""Running a campaign from the command line, and saying what it will take."""

from pathlib import Path

from kgym.bench import attempt_files
from kgym.bench.attempt_record import AttemptRecord
from kgym.bench.campaign import Campaign, Estimate, estimate, missing, plan
from kgym_benchmark.campaign import runner
from kgym_benchmark.campaign.runner import Equipment, Summary
from kgym_benchmark.campaign.subjects import Subjects
from kgym_cli.bench.campaign_equipment import with_equipment
from kgym_cli.output import Exit, people, print_table, results


def carried_out(campaign: Campaign, found: Subjects, into: Path, home: Path) -> Summary:
    """Run a campaign as far as it goes."""
    needs_agent = any(one.kind == "crashfixer" for one in campaign.agents)

    async def work(equipment: Equipment) -> Summary:
        return await runner.Run(campaign, found, into, equipment, _tell).go()

    return with_equipment(work, home, crashfixer=needs_agent)


def status_of(summary: Summary) -> Exit:
    """Return the exit status that a campaign's summary stands for."""
    if summary.failed:
        return Exit.INFRASTRUCTURE
    return Exit.NEGATIVE if summary.limit else Exit.OK


def estimated(
    campaign: Campaign, found: Subjects, into: Path, history: tuple[Path, ...]
) -> Estimate:
    """Return what a campaign has to do, and what that will take."""
    done = _attempts(into)
    planned = plan(campaign, [one.id for one in found.bugs])
    open_ = missing(planned, done)
    earlier = [*done, *(record for one in history for record in _attempts(one))]
    return estimate(campaign, open_, earlier, len(planned) - len(open_))


def _attempts(place: Path) -> list[AttemptRecord]:
    path = place / attempt_files.NAME if place.is_dir() else place
    return list(attempt_files.read(path)) if path.exists() else []


def show(found: Estimate) -> None:
    """Print an estimate for people."""
    rows = (
        (
            str(one.setup),
            str(one.attempts),
            _number(one.seconds, "{:.0f}"),
            _number(one.dollars, "{:.2f}"),
            str(one.rests_on),
        )
        for one in found.setups
    )
    print_table("setup", "attempts", "seconds", "dollars", "by earlier", rows=rows)
    hours, dollars = _number(found.hours, "{:.1f} h"), _number(found.dollars, "${:.2f}")
    results.print(f"{found.attempts} attempts to make, {found.done} are made; {hours}, {dollars}")


def _number(value: float | None, form: str) -> str:
    return "not known" if value is None else form.format(value)


def _tell(said: AttemptRecord | str) -> None:
    if isinstance(said, str):
        people.print(f"no verdict: {said}", style="yellow", markup=False)
        return
    took = f"{said.seconds:.0f} s" if said.seconds is not None else ""
    people.print(
        f"{said.bug}: {said.setup}, run {said.run}: {said.outcome} {took}",
        style="dim",
        markup=False,
    )
