"""`kgym bench run`, `kgym bench judge-patches` and `kgym bench verify`."""

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import Field

from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import AttemptRecord, Outcome
from kgym.bench.campaign import AgentEntry, Campaign
from kgym.errors import InfrastructureError, NotFound
from kgym.host.separate_process import within
from kgym_cli import extras
from kgym_cli.inputs.parameters import FILE, FOLDER, PATH
from kgym_cli.output import Exit, json_option, leave, people, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.settings import options_of

if TYPE_CHECKING:
    from kgym_benchmark.campaign.runner import Equipment


@click.command()
@click.argument("description", metavar="CAMPAIGN.toml", type=FILE)
@click.option(
    "--into", required=True, metavar="DIR", type=FOLDER, help="Folder for the campaign's results."
)
@click.option("--dry-run", is_flag=True, help="Only show open attempts and their estimated cost.")
@click.option(
    "--history",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True),
    help="An earlier campaign from which cost is estimated; may be repeated.",
)
@click.option(
    "--compare-fix",
    is_flag=True,
    help="Also compare what variants do with each patch and with the developers' fix; same as"
    " `compare_fix` in CAMPAIGN.toml.",
)
@options_of("bench run")
@json_option("kgym_benchmark.campaign.runner:Summary", "kgym.bench.campaign:Estimate")
def run(
    description: Path,
    into: Path,
    dry_run: bool,
    history: tuple[Path, ...],
    compare_fix: bool,
    as_json: bool,
) -> None:
    """Run a campaign: several attempts of agents on bugs.

    CAMPAIGN.toml names bugs, agents, models and limits. Each attempt is recorded on disk as soon
    as it ends. If the command is interrupted or killed, repeat it: no attempt, no question to a
    model and no kernel build is repeated.

    The exit status is 0 if all attempts are done, 1 if a limit was reached before, 2 for bad input,
    3 if some attempts have no verdict: repeat the command to retry them.
    """
    extras.require("worker", "bench")
    from kgym_benchmark.campaign import subjects  # noqa: PLC0415 - needs the extras
    from kgym_cli.bench import campaign_run  # noqa: PLC0415

    campaign = subjects.read(description)
    if compare_fix:
        campaign = campaign.model_copy(update={"compare_fix": True})
    # Relative paths in CAMPAIGN.toml are relative to it, wherever the command runs.
    home = description.absolute().parent
    chosen_subjects = subjects.load(campaign, home)
    if chosen_subjects.unbundled:
        people.print(
            f"{chosen_subjects.unbundled} bugs of the dataset cannot be run and are left out"
        )
    campaign_run.check(campaign, chosen_subjects, into, home)
    if dry_run:
        estimate = campaign_run.estimated(campaign, chosen_subjects, into, history)
        if not printed_json(estimate, as_json):
            campaign_run.show(estimate)
        return
    summary = campaign_run.carried_out(campaign, chosen_subjects, into, home)
    if not printed_json(summary, as_json):
        results.print(str(summary))
    leave(campaign_run.status_of(summary))


# Limits of reading the patches: a small file of JSON may take any memory.
_SECONDS, _MEMORY = 600.0, 6 << 30


@click.command()
@click.argument("patches", type=PATH)
@click.option(
    "--into",
    required=True,
    metavar="DIR",
    type=FOLDER,
    help="Folder for the results, as of a campaign.",
)
@click.option("--dataset", "known", type=FOLDER, help="Dataset with the bugs that are not shipped.")
@click.option("--agent", default="unknown", help="Agent of patches that name none.")
@click.option("--model", default="", show_default=False, help="Model of patches that name none.")
@click.option(
    "--instances", type=click.IntRange(1, 1000), default=25, help="VMs that prove a patch."
)
@click.option("--compare-fix", is_flag=True, help="Also compare with the developers' fix.")
@json_option("kgym_benchmark.campaign.runner:Summary")
def judge_patches(
    patches: Path,
    into: Path,
    known: Path | None,
    agent: str,
    model: str,
    instances: int,
    compare_fix: bool,
    as_json: bool,
) -> None:
    """Try PATCHES that were made elsewhere as a campaign tries those of its agents.

    PATCHES is a file or a folder, in one of these formats. Each line or row may also have agent,
    model, dollars, seconds, verdict, and trajectory: the path of a file beside PATCHES.

    \b
    SWE-bench    predictions: instance_id, model_patch, model_name_or_path
    kArena       the JSON that its patch importer reads
    a folder     BUG/NAME.patch

    DIR is like a campaign's folder: `bench report`, `judge` and `publish` take it. Repeat the
    command after an interruption. Costs and verdicts of the file are kept as the agent's own
    account. The exit status is 2 for a bug that cannot be tried, 3 for patches without a verdict.
    """
    extras.require("worker", "bench")
    from kgym.bench import imported_patches  # noqa: PLC0415 - needs the extras
    from kgym_benchmark.campaign import subjects  # noqa: PLC0415
    from kgym_cli.bench import campaign_run  # noqa: PLC0415

    reading = within(_SECONDS, _MEMORY, imported_patches.read, patches, agent, model)
    imported = asyncio.run(reading)
    whole = dataset.load(known) if known is not None else None
    chosen, left_out = subjects.of_ids((patch.bug for patch in imported), whole)
    for bug, why in left_out.items():
        people.print(f"{bug}: {why}", style="yellow")
    if left_out:
        raise NotFound("no_such_bug", f"{len(left_out)} bugs cannot be tried: {min(left_out)}, …")
    campaign = Campaign(
        name="imported",
        instances=instances,
        compare_fix=compare_fix,
        agents=[AgentEntry(name=agent, command=["false"])],
    )
    summary = campaign_run.carried_out(campaign, chosen, into, Path.cwd(), imported)
    if not printed_json(summary, as_json):
        results.print(str(summary))
    leave(campaign_run.status_of(summary))


class VerifyAnswer(Answer):
    """What was checked."""

    accepted: bool = Field(
        description="whether no problem was found; patches under `unknown` do not count"
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
    # Damaged results are refused without running kernels.
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
