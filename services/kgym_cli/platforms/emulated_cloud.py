"""An emulated cloud on loopback, and platforms that use it like the real one.

Bucket and VMs are two test servers (`tests/google`), started as processes; they exist only in a
checkout.
"""

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kgym.errors import InfrastructureError, UserError
from kgym.host.resources import Host
from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.platforms.servers import LOOPBACK, Program, free_port
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym_vmmanager.vm.provider import Provider

BUCKET = "kgym-emulated"
# The worker's address in the network of the emulated VMs.
_NEIGHBOUR = "169.254.10.1"
_OWNER = "kgym-emulated"
# SSH port of emulated instances (tests/google/cloud_compute/machine.py): 22 would need root.
_SSH_PORT = 2222
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05


def is_chosen() -> bool:
    """Return whether to use an emulated cloud; raise UserError `bad_setting`."""
    chosen = settings()
    if "provider" in chosen.given and chosen.provider == "gce" and not chosen.emulated:
        raise UserError(
            "bad_setting",
            "--provider gce is an option of workers (`kgym worker --provider gce`), which this"
            " command reaches through --server; here it needs --emulated",
            setting="provider",
        )
    if chosen.emulated and chosen.provider != "gce":
        raise UserError("bad_setting", "--emulated needs --provider gce", setting="emulated")
    return chosen.emulated


@contextmanager
def emulated_provider(folder: Path, storage: str = "") -> "Iterator[Provider]":
    """Context manager: a provider whose VMs run on an emulated Compute Engine.

    `storage` is the URL of the emulated bucket server.
    """
    checkout = extras.require_checkout("--emulated")
    extras.require("gcp")
    from kgym_vmmanager.gce.options import GceOptions  # noqa: PLC0415 - seconds of imports
    from kgym_vmmanager.gce.provider import Gce  # noqa: PLC0415

    port = free_port()
    words = ("--storage", storage, "--reachable", f"{_NEIGHBOUR}:{port}")
    with _server(checkout, "cloud_compute", folder, *words) as url:
        yield Gce(
            GceOptions(
                project="emulated",
                zones=("emulated-a", "emulated-b"),
                address=_NEIGHBOUR,
                port=port,
                listen=LOOPBACK,
                owner=_OWNER,
                image_per_kernel=settings().gce_image_per_kernel,
                most_vms=max(1, Host.here().cores),
                endpoint=url,
                ssh_port=_SSH_PORT,
            )
        )


@contextmanager
def emulated_platform(data: Path) -> Iterator[tuple[str, str]]:
    """Context manager: a platform on an emulated cloud; yields its URL and its owner token.

    Its own folder inside the data folder is emptied before and after; the cache is shared.
    """
    checkout = extras.require_checkout("--emulated")
    extras.require(*extras.ONE_MACHINE, "gcp")
    folder = data / "emulated"
    # Left by a killed command: emulated VMs and buckets do not survive their servers.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        from kgym.transport.gcs.connection import connect  # noqa: PLC0415 - seconds of imports
        from kgym.transport.gcs.storage import CALLS, GcsStorage  # noqa: PLC0415
        from kgym_cli.platforms.embedded_platform import Platform  # noqa: PLC0415

        bucket = _server(checkout, "cloud_storage", folder / "buckets", BUCKET)
        url = stack.enter_context(bucket)
        provider = stack.enter_context(emulated_provider(folder / "machines", url))
        cache = data / "cache"
        storage = GcsStorage(BUCKET, "kgym", cache / "storage", connect(CALLS, url))
        people.print("emulated: bucket and VMs are servers on this machine, no cloud", style="dim")
        platform = Platform(folder, cache=cache, storage=storage, provider=provider)
        with platform:
            yield platform.url, platform.owner


@contextmanager
def _server(checkout: Path, name: str, folder: Path, *words: str) -> Iterator[str]:
    """Context manager: run `tests.google.NAME.server`, a test server; yields its URL.

    Raises InfrastructureError `server_failed` if it does not listen in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    program = Program(
        name,
        [
            *(sys.executable, "-m", f"tests.google.{name}.server"),
            *("--port", str(port), "--folder", str(folder.absolute()), *words),
        ],
        folder.absolute() / "log",
    )
    program.cwd = checkout
    program.spawn()
    try:
        ends = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if program.pid is None or time.monotonic() > ends:
                raise InfrastructureError("server_failed", f"{name}: {program.tail()}")
            time.sleep(_POLL_SECONDS)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        program.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
