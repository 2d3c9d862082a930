"""`kgym bench run`."""

from pathlib import Path

import click

from kgym_cli import extras
from kgym_cli.inputs.parameters import FILE, FOLDER
from kgym_cli.output import json_option, leave, people, printed_json, results
from kgym_cli.settings import options_of


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
