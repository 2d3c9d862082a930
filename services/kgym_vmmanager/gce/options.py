"""What an operator says of the cloud that a worker's VMs run in."""

from dataclasses import dataclass

# VMs of one worker at the same time, unless it is told otherwise.
MOST_VMS = 50
# Of the console: the published limit is 1,500 a minute, of a project, in each region.
CALLS_PER_SECOND = 20.0


@dataclass(frozen=True, slots=True)
class GceOptions:
    """Where the VMs are made, and how they reach the worker.

    `zones` are tried in their order; `machine` is a family of custom machine types. `address` is
    the worker's in the VMs' network, whose `port` gives them kernels; 0 takes any that is free.
    `endpoint` is another server that speaks as the service does.
    """

    project: str
    zones: tuple[str, ...]
    address: str
    port: int = 0
    listen: str | None = None
    """The address of this host to listen on; None: all, as that of a container differs."""
    machine: str = "n2-custom"
    network: str = "global/networks/default"
    subnet: str | None = None
    image: str | None = None
    """The helper image; None: it is made."""
    image_per_kernel: bool = False
    """Whether each kernel gets an image of its own, in place of the helper's starting it."""
    owner: str = "kgym"
    """The label by which its VMs are known, of all workers of a platform."""
    spot: bool = True
    most_vms: int = MOST_VMS
    calls_per_second: float = CALLS_PER_SECOND
    endpoint: str | None = None
    ssh_port: int = 22

    @property
    def emulated(self) -> bool:
        """Whether it is not the service itself: its VMs are as slow as emulated CPUs are."""
        return self.endpoint is not None

    @property
    def accelerator(self) -> str:
        """What results call it; runs on different ones are never pooled."""
        return "gce-emulated" if self.emulated else f"gce-{self.machine.partition('-')[0]}"
