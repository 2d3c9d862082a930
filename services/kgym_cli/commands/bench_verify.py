"""`kgym bench verify`."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import AttemptRecord, Outcome
from kgym.errors import InfrastructureError
from kgym_cli import extras
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import Exit, json_option, leave, printed_json, results
from kgym_cli.output.answer import Answer

if TYPE_CHECKING:
    from kgym_benchmark.campaign.runner import Equipment


class VerifyAnswer(Answer):
    """What was checked."""

    accepted: bool = Field(
        description="whether there is no problem; it says nothing about what is `unknown`"
    )
    problems: list[str] = Field(description="differences from what the results state")
    retried: int = Field(description="patches that were tried again with a verdict")
    unknown: list[str] = Field(description="patches of the sample without a verdict")


@click.command()
@click.argument("folder", metavar="RESULTS", type=FOLDER)
@click.option("--sample", type=click.IntRange(0), default=3, help="Patches to try again.")
@click.option("--dataset", "known", type=FOLDER, help="Dataset with the bugs.  [default: RESULTS]")
@json_option(VerifyAnswer)
def verify(folder: Path, sample: int, known: Path | None, as_json: bool) -> None:
    """Check published RESULTS of a campaign.

    The files must have the digests of manifest.json (`bench report --manifest` writes it), the
    figures are computed again, and a random sample of the patches is tried again with the
    campaign's options. A platform that has tried a patch before answers from its jobs.

    The exit status is 0 if the results are accepted, 1 if not, 3 if a patch got no verdict.
    """
    extras.require("worker", "bench")
    from kgym_cli.bench import manifest  # noqa: PLC0415 - needs the extras

    problems, unknown, chosen = manifest.differences(folder), [], []
    # What is damaged anyway needs no kernels.
    if not problems:
        patches = {
            (record.bug, record.diff): record
            for record in attempt_files.read(folder / attempt_files.NAME)
            if record.diff and record.outcome is not Outcome.UNKNOWN
        }
        every = list(patches.values())
        # Not seeded: whoever publishes results must not know the sample.
        chosen = secrets.SystemRandom().sample(every, min(sample, len(every)))
    for record, (outcome, why) in zip(
        chosen, _retried(chosen, folder, known or folder), strict=True
    ):
        which = f"{record.bug}, {record.setup}, run {record.run}: {record.outcome} stated"
        if outcome is None:
            unknown.append(f"{which}, no verdict: {why}")
        elif outcome is not record.outcome:
            problems.append(f"{which}, {outcome} seen")
    answer = VerifyAnswer(
        accepted=not problems,
        problems=problems,
        retried=len(chosen) - len(unknown),
        unknown=unknown,
    )
    if not printed_json(answer, as_json):
        undecided = "undecided: patches of the sample have no verdict"
        last = "not accepted" if problems else undecided if unknown else "accepted"
        for line in (*problems, *unknown, last):
            results.print(line)
    leave(Exit.NEGATIVE if problems else Exit.INFRASTRUCTURE if unknown else Exit.OK)


def _retried(
    chosen: list[AttemptRecord], folder: Path, known: Path
) -> list[tuple[Outcome | None, str]]:
    """Try patches again; return each outcome, or None and why there is none."""
    from kgym_benchmark.campaign import subjects, verification  # noqa: PLC0415 - needs the extras
    from kgym_cli.bench import campaign_run  # noqa: PLC0415

    if not chosen:
        return []
    bugs, left_out = subjects.of_ids((record.bug for record in chosen), dataset.load(known))
    if not bugs.bugs:
        return [(None, left_out[record.bug]) for record in chosen]
    by_id = {bug.id: bug for bug in bugs.bugs}
    trial = verification.trial_of(subjects.read_options(folder))

    async def work(equipment: "Equipment") -> list[tuple[Outcome | None, str]]:
        again = verification.Verification(equipment.client, trial)

        async def outcome(bug: str, diff: str) -> tuple[Outcome | None, str]:
            if bug in left_out:
                return None, left_out[bug]
            try:
                change = verification.text_identity(diff)
                return (await again.verify(by_id[bug], diff, change)).outcome, ""
            except InfrastructureError as error:
                return None, error.message

        return [await outcome(record.bug, record.diff or "") for record in chosen]

    return campaign_run.with_equipment(work, folder, crashfixer=False, own=False)
