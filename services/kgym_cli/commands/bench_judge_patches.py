"""`kgym bench judge-patches`."""

import asyncio
from pathlib import Path

import click

from kgym.bench import dataset
from kgym.bench.campaign import AgentEntry, Campaign
from kgym.errors import NotFound
from kgym.host.separate_process import within
from kgym_cli import extras
from kgym_cli.inputs.parameters import FOLDER, PATH
from kgym_cli.output import json_option, leave, people, printed_json, results

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
