"""`kgym worker`."""

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from kgym.api.jobs import WorkerView
from kgym.api.steps import StepKind
from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.output import json_option, people, print_table, printed_json, results
from kgym_cli.platforms.emulated_cloud import emulated_provider
from kgym_cli.platforms.scheduler_choice import scheduler
from kgym_cli.platforms.step_registry import (
    Service,
    entries,
    equipment,
    extras_of,
    handlers,
    kinds_named,
    looking,
)
from kgym_cli.settings import Settings, options_of, settings

if TYPE_CHECKING:
    from kgym_vmmanager.vm.provider import Provider


def _kinds(named: str | None) -> list[StepKind]:
    try:
        return kinds_named(named) if named else list(StepKind)
    except ValueError as error:
        message = f"--kinds: {error}; there are: {', '.join([*StepKind, *Service])}"
        raise UserError("bad_setting", message, setting="kinds") from error


@click.group(invoke_without_command=True)
@options_of("worker")
@click.pass_context
def worker(context: click.Context) -> None:
    """Run steps of these kinds, `slots` at a time, until stopped or drained.

    SIGTERM and Ctrl-C return running steps to the queue at once; SIGUSR1 lets the worker finish
    them, take no more, and exit. The subcommands show and drain the scheduler's workers.

    Kernel sources may come from public addresses; --sources and --source-networks allow more.
    """
    if context.invoked_subcommand is not None:
        return
    chosen = settings()
    kinds = _kinds(chosen.kinds)
    if chosen.server is None:
        raise UserError("no_server", "give the scheduler's URL with --server or KGYM_SERVER")
    # Before anything starts: a missing extra is reported at once, not when the first step of that
    # kind comes.
    extras.require(*extras_of(kinds))
    # Imported late: these imports take longer than a whole command that needs none of them.
    from kgym_cli.platforms.composition import open_storage  # noqa: PLC0415
    from kgym_cli.platforms.process import run  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        if chosen.emulated:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            buckets = getattr(open_storage(chosen.storage, chosen.cache), "url", "")
            # Emulated VMs fetch kernels from the emulated bucket, if artifacts are there.
            provider: Provider | None = stack.enter_context(emulated_provider(folder, buckets))
        else:
            provider = _provider_of(chosen)
        run(_serve(chosen, chosen.server, kinds, provider))


@worker.command("list")
@json_option(list[WorkerView])
def list_(as_json: bool) -> None:
    """List the workers."""
    with scheduler(work=False) as client:
        known = client.workers()
    if printed_json(known, as_json):
        return
    columns = ("worker", "state", "kinds", "slots", "running", "seen")
    print_table(*columns, rows=map(_row, known))


def _row(worker: WorkerView) -> tuple[str, ...]:
    running = " ".join(f"{step.job}.{step.step}" for step in worker.running)
    seen = worker.seen_at.astimezone().strftime("%H:%M:%S")
    return escape(worker.id), worker.state, " ".join(worker.kinds), str(worker.slots), running, seen


@worker.command()
@click.argument("worker_id")
@json_option(WorkerView)
def drain(worker_id: str, as_json: bool) -> None:
    """Let a worker finish its running steps, take no more, and exit."""
    with scheduler(work=False) as client:
        draining: WorkerView = client.drain(worker_id)
    if not printed_json(draining, as_json):
        results.print(f"{draining.id}: {draining.state}, {len(draining.running)} steps to finish")


def _provider_of(chosen: Settings) -> "Provider | None":
    """Return the cloud provider, None for QEMU; raise UserError `bad_setting`."""
    if chosen.provider == "qemu":
        if chosen.emulated:
            raise UserError("bad_setting", "--emulated needs --provider gce", setting="emulated")
        return None
    if chosen.gce_image and chosen.gce_image_per_kernel:
        message = "--gce-image-per-kernel excludes --gce-image: it boots no helper image"
        raise UserError("bad_setting", message, setting="gce_image")
    extras.require("gcp")
    named = {
        "gce_project": chosen.gce_project,
        "gce_zones": chosen.gce_zones,
        "gce_address": chosen.gce_address,
    }
    # All missing options are named at once.
    if missing := [name for name, value in named.items() if not value]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UserError("bad_setting", f"--provider gce also needs {options}", setting=missing[0])
    from kgym_vmmanager.gce.options import GceOptions  # noqa: PLC0415 - with QEMU, it is not used
    from kgym_vmmanager.gce.provider import Gce  # noqa: PLC0415

    zones = tuple(word for word in str(chosen.gce_zones).replace(",", " ").split())
    return Gce(
        GceOptions(
            project=str(chosen.gce_project),
            zones=zones,
            address=str(chosen.gce_address),
            port=chosen.gce_port,
            machine=chosen.gce_machine,
            network=chosen.gce_network,
            subnet=chosen.gce_subnet,
            image=chosen.gce_image,
            image_per_kernel=chosen.gce_image_per_kernel,
            owner=chosen.gce_owner,
            spot=chosen.gce_spot,
            most_vms=chosen.gce_vms,
        )
    )


async def _serve(
    chosen: Settings, server: str, kinds: list[StepKind], provider: "Provider | None"
) -> None:
    from kgym.worker.http_calls import HttpWorkerCalls  # noqa: PLC0415
    from kgym.worker.loop import Worker  # noqa: PLC0415
    from kgym_cli.platforms.composition import open_bus, open_storage  # noqa: PLC0415
    from kgym_cli.platforms.process import settle  # noqa: PLC0415

    storage = open_storage(chosen.storage, chosen.cache)
    has = equipment(chosen, chosen.cache, chosen.syzkaller, provider)
    look, does = await looking(kinds, has, storage), handlers(kinds, has)
    declared = await look()
    async with (
        open_bus(chosen.bus) as bus,
        HttpWorkerCalls(server, chosen.token) as calls,
        contextlib.AsyncExitStack() as stack,
    ):
        if provider is not None:
            stack.push_async_callback(provider.close)
        shape = chosen.slots, declared, entries(kinds, has)
        worker = Worker(calls, bus, storage, does, chosen.folder, *shape, chosen.host_name, look)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, worker.drain)
        people.print(f"worker {worker.info.id}: {', '.join(kinds)}")
        settle()
        await worker.serve()
