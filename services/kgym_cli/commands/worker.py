"""`kgym worker`."""

from pathlib import Path

import click
from rich.markup import escape

from kgym.api.jobs import WorkerView
from kgym.api.steps import StepKind
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.output import json_option, people, print_json, print_table, results
from kgym_cli.scheduler_choice import data_folder, scheduler


def _kinds(_: click.Context, __: click.Parameter, value: str) -> list[StepKind]:
    try:
        return [StepKind(name.strip()) for name in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{error}; there are: {', '.join(StepKind)}") from error


@click.group(invoke_without_command=True)
@click.option("--server", envvar="KGYM_SERVER", help="URL of a scheduler.")
@click.option("--bus", envvar="KGYM_BUS", help="URL: amqp://…; without, it asks every second.")
@click.option("--storage", envvar="KGYM_STORAGE", help="Folder that it shares with the scheduler.")
@click.option("--kinds", default=",".join(StepKind), show_default=True, callback=_kinds)
@click.option("--slots", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="For work files.")
@click.option(
    "--syzkaller",
    envvar="KGYM_SYZKALLER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with syz-execprog and syz-executor, or with such folders named by commit.",
)
@click.pass_context
def worker(
    context: click.Context,
    server: str | None,
    bus: str | None,
    storage: str | None,
    kinds: list[StepKind],
    slots: int,
    folder: Path | None,
    syzkaller: Path | None,
) -> None:
    """Do steps of these kinds, `slots` at a time, until stopped or drained.

    SIGTERM and Ctrl-C give back at once what runs. The subcommands show and
    drain the workers that a scheduler knows.

    Kernel sources come from public addresses; the environment allows more: KGYM_SOURCES
    names folders (DIR:DIR) with tarballs and Git repositories, KGYM_SOURCE_NETWORKS
    private networks (10.1.0.0/16,...).
    """
    root = context.find_root().params
    server = server or root.get("server")
    root["server"] = server
    if context.invoked_subcommand is not None:
        return
    if server is None:
        raise UserError("no_server", "give the scheduler's URL with --server or KGYM_SERVER")
    extras.require("worker", *(["tracer"] if StepKind.MINIMIZE in kinds else []))
    # Its imports take longer than a command that needs none of this.
    from kgym_cli.composition import run  # noqa: PLC0415

    where = storage or str(data_folder() / "artifacts")
    folder = folder or data_folder() / "work" / "workers"
    run(_serve(server, root.get("token"), bus, where, kinds, slots, folder, syzkaller))


@worker.command("list")
@json_option(list[WorkerView])
def list_(as_json: bool) -> None:
    """List the workers."""
    with scheduler(work=False) as client:
        known = client.workers()
    if as_json:
        print_json(known)
        return
    columns = ("worker", "state", "kinds", "slots", "running", "seen")
    print_table(*columns, rows=map(_row, known))


def _row(one: WorkerView) -> tuple[str, ...]:
    running = " ".join(f"{step.job}.{step.step}" for step in one.running)
    seen = one.seen_at.astimezone().strftime("%H:%M:%S")
    return escape(one.id), one.state, " ".join(one.kinds), str(one.slots), running, seen


@worker.command()
@click.argument("worker_id")
@json_option(WorkerView)
def drain(worker_id: str, as_json: bool) -> None:
    """Let a worker finish what it runs, take no more, and end."""
    with scheduler(work=False) as client:
        one: WorkerView = client.drain(worker_id)
    if as_json:
        print_json(one)
    else:
        results.print(f"{one.id}: {one.state}, {len(one.running)} steps to finish", markup=False)


async def _serve(
    server: str,
    token: str | None,
    bus: str | None,
    storage: str,
    kinds: list[StepKind],
    slots: int,
    folder: Path,
    syzkaller: Path | None,
) -> None:
    from kgym.host.detection import detect  # noqa: PLC0415
    from kgym.worker.http_calls import HttpWorkerCalls  # noqa: PLC0415
    from kgym.worker.loop import Worker  # noqa: PLC0415
    from kgym_cli.composition import open_bus, open_storage, settle  # noqa: PLC0415
    from kgym_cli.step_handlers import handlers  # noqa: PLC0415
    from kgym_vmmanager.vm.accelerator import best_accelerator  # noqa: PLC0415

    cache = data_folder() / "cache"
    accelerator = None
    if StepKind.REPRODUCE in kinds:
        accelerator = (await best_accelerator(cache)).accelerator
    capabilities = detect(accelerator, syzkaller)
    does = handlers(kinds, cache, syzkaller)
    async with open_bus(bus) as opened, HttpWorkerCalls(server, token) as dispatch:
        one = Worker(dispatch, opened, open_storage(storage), does, folder, slots, capabilities)
        people.print(f"worker {one.info.id}: {', '.join(kinds)}", markup=False)
        settle()
        await one.serve()
