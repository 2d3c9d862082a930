"""A cloud on this machine's loopback, and platforms that use it as they would use the real one.

Bucket and VMs are behind two servers of a checkout (`kgym_dev`) that answer as the services do.
"""

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kgym.errors import UserError
from kgym.host.resources import Host
from kgym_cli import extras
from kgym_cli.output import people
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym_vmmanager.gce.provider import Gce

BUCKET = "kgym-emulated"
_NEIGHBOUR = "169.254.10.1"
"""The worker's address in the network of the emulated VMs."""
_OWNER = "kgym-emulated"


def is_chosen() -> bool:
    """Whether this command is to run on an emulated cloud. Raises UserError `bad_setting`."""
    chosen = settings()
    if "provider" in chosen.given and chosen.provider == "gce" and not chosen.emulated:
        raise UserError(
            "bad_setting",
            "--provider gce is a worker's (`kgym worker --provider gce`), which this command"
            " reaches by --server; here it goes with --emulated",
            setting="provider",
        )
    if chosen.emulated and chosen.provider != "gce":
        raise UserError("bad_setting", "--emulated goes with --provider gce", setting="emulated")
    return chosen.emulated


@contextmanager
def emulated_provider(folder: Path, storage: str = "") -> "Iterator[Gce]":
    """Run the server of VMs while the context lasts; yield a provider that uses it.

    `storage` is the address of the server of buckets.
    """
    require_checkout()
    extras.require("gcp")
    from kgym_dev.cloud_compute.machine import SSH_PORT  # noqa: PLC0415 - of the checkout alone
    from kgym_dev.cloud_compute.server import CloudCompute  # noqa: PLC0415
    from kgym_vmmanager.gce.options import GceOptions  # noqa: PLC0415
    from kgym_vmmanager.gce.provider import Gce  # noqa: PLC0415

    port = _free_port()
    with CloudCompute(folder, storage) as compute:
        compute.reachable[_NEIGHBOUR, port] = ("127.0.0.1", port)
        yield Gce(
            GceOptions(
                project="emulated",
                zones=("emulated-a", "emulated-b"),
                address=_NEIGHBOUR,
                port=port,
                listen="127.0.0.1",
                owner=_OWNER,
                image_per_kernel=settings().gce_image_per_kernel,
                most_vms=max(1, Host.here().cores),
                endpoint=compute.url,
                ssh_port=SSH_PORT,
            )
        )


@contextmanager
def emulated_platform(data: Path) -> Iterator[tuple[str, str]]:
    """Run a platform on an emulated cloud; yield its URL and a token for all.

    It has a folder of its own in the data folder, where nothing is kept, and shares the cache.
    """
    extras.require(*extras.ONE_MACHINE, "gcp")
    folder = data / "emulated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        from kgym.transport.gcs.connection import connect  # noqa: PLC0415 - they take seconds
        from kgym.transport.gcs.storage import CALLS, GcsStorage  # noqa: PLC0415
        from kgym_cli.embedded_platform import Platform  # noqa: PLC0415

        require_checkout()
        from kgym_dev.cloud_storage.server import CloudStorage  # noqa: PLC0415

        buckets = stack.enter_context(CloudStorage(folder / "buckets"))
        buckets.buckets.create(BUCKET)
        provider = stack.enter_context(emulated_provider(folder / "machines", buckets.url))
        cache = data / "cache"
        storage = GcsStorage(BUCKET, "kgym", cache / "storage", connect(CALLS, buckets.url))
        people.print("emulated: bucket and VMs are servers on this machine, no cloud", style="dim")
        platform = Platform(folder, cache=cache, storage=storage, provider=provider)
        with platform:
            yield platform.url, platform.owner


def require_checkout() -> None:
    """Raise UserError `extra_missing` where the servers for development are not installed."""
    if find_spec("kgym_dev") is None:
        raise UserError(
            "extra_missing",
            "--emulated starts servers for development, and is part of the checkout alone",
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
