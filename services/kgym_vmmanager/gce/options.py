"""The operator's options for VMs in the cloud."""

from dataclasses import dataclass

# Default limit of a worker's concurrent VMs.
MOST_VMS = 50
# Reads of consoles: the service's limit is 1,500 a minute for a project in each region.
CALLS_PER_SECOND = 20.0


@dataclass(frozen=True, slots=True)
class GceOptions:
    """Where VMs are created, and how they reach the worker.

    `zones` are tried in this order; `machine` is a family of custom machine types. `address` is the
    worker's in the VMs' network; they fetch kernels from its `port` (0: any free one). `endpoint`
    is an emulator of the service.
    """

    project: str
    zones: tuple[str, ...]
    address: str
    port: int = 0
    listen: str | None = None
    """The address to listen on; None: all, since a container's differs from `address`."""
    machine: str = "n2-custom"
    network: str = "global/networks/default"
    subnet: str | None = None
    image: str | None = None
    """The helper image; None: it is built."""
    image_per_kernel: bool = False
    """Whether each kernel gets an image of its own instead of being started by the helper."""
    owner: str = "kgym"
    """The label of the VMs of all workers of a platform."""
    spot: bool = True
    most_vms: int = MOST_VMS
    calls_per_second: float = CALLS_PER_SECOND
    endpoint: str | None = None
    ssh_port: int = 22

    @property
    def emulated(self) -> bool:
        """Whether the service is an emulator, whose VMs have emulated CPUs."""
        return self.endpoint is not None

    @property
    def accelerator(self) -> str:
        """The accelerator's name in results; runs on different ones are never pooled."""
        return "gce-emulated" if self.emulated else f"gce-{self.machine.partition('-')[0]}"
