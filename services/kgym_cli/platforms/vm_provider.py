"""The configured provider of VMs."""

from typing import TYPE_CHECKING

from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.settings import Settings

if TYPE_CHECKING:
    from kgym_vmmanager.vm.provider import Provider


def provider_of(chosen: Settings) -> "Provider | None":
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
