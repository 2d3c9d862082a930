"""The provider: VMs of Google Compute Engine for a worker's steps."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgym.api.steps import DumpMethod, ReproduceSpec, VmShape, on_disk
from kgym.errors import InfrastructureError, UserError
from kgym.transport.artifact_storage import sha256_of
from kgym.worker.context import StepContext
from kgym_vmmanager.cloud.kernel_server import KernelServer
from kgym_vmmanager.cloud.labels import BOOT, instance_name, labels
from kgym_vmmanager.cloud.sweeper import sweeping
from kgym_vmmanager.cloud.zones import Place, Zones
from kgym_vmmanager.gce.calls import Compute, Gone, NoRoom, Taken
from kgym_vmmanager.gce.images import Images, KernelImages
from kgym_vmmanager.gce.machine import GceVm
from kgym_vmmanager.gce.options import GceOptions
from kgym_vmmanager.vm.accelerator import Accelerator, Probed, best_accelerator
from kgym_vmmanager.vm.provider import Boot, InstanceLimits, Vm, VmHost, VmLost
from kgym_vmmanager.vm.qemu import capture_command_line, kernel_words

# By whether the CPUs are emulated. A boot includes that of the helper.
LIMITS = {
    False: InstanceLimits(boot=180, silence=30, reconnect=45, watchdog=250),
    True: InstanceLimits(boot=400, silence=60, reconnect=90, watchdog=250),
}
# Cores and MiB that a VM takes of the worker's own host, for its console and connections.
_ROOM = (0, 64)
_CAPACITY = (64, 512 << 10)
# Lifetime of a VM beyond boots, run and dump; then the service itself deletes it.
_BEYOND_SECONDS = 1800.0
# Lifetime of a step's images beyond its runs: VMs wait for capacity, and for each other.
_STEP_SECONDS = 86400.0
_DELETE_SECONDS = 300.0


class Gce:
    """A `Provider`. All steps of a worker share it, in one event loop."""

    dumps: tuple[DumpMethod, ...] = ("kdump",)
    capacity = _CAPACITY

    def __init__(self, options: GceOptions) -> None:
        self.options = options
        self.zones = Zones(options.zones, spot=options.spot)
        self.slots = asyncio.Semaphore(options.most_vms)
        self.deleting: set[asyncio.Task[None]] = set()
        # SHA-256 of kernels that the helper cannot start.
        self.refused: set[str] = set()
        self._opened: _Opened | None = None
        self._opening = asyncio.Lock()

    async def accelerator(self, cache: Path) -> str:
        """Return the name of the machines' CPUs, as results have it."""
        return self.options.accelerator

    @asynccontextmanager
    async def host(self, run: StepContext, cache: Path) -> AsyncIterator[VmHost]:
        """Upload the helper image if the project lacks it; yield the host of a step.

        Raises UserError for root disks, and for dumps from outside.
        """
        spec = run.spec(ReproduceSpec)
        if on_disk(spec.vm.root):
            raise UserError(
                "no_cloud_disk",
                "this worker's VMs run in a cloud, and start from an initramfs alone: leave out"
                " --root disk, or give the step to a worker with QEMU",
            )
        if spec.dump not in {*self.dumps, "none"}:
            raise UserError(
                "no_dump_method", f"a VM in a cloud cannot be dumped by `{spec.dump}`: use kdump"
            )
        opened = await self._open(run)
        image = None
        if not self.options.image_per_kernel:
            image = self.options.image or await opened.images.helper(run, cache)
        run.log(f"VMs: {self.options.accelerator}, in {', '.join(self.options.zones)}")
        # An emulated machine has this host's TSC, like a QEMU of our own.
        here = await best_accelerator(cache) if self.options.emulated else None
        seconds = _STEP_SECONDS + spec.time * spec.instances
        async with opened.images.of_step(run, cache, seconds) as own:
            yield GceHost(self, opened, run, image, own, here)

    async def close(self) -> None:
        """Wait for running deletions, then stop listening."""
        if self.deleting:
            await asyncio.wait(self.deleting, timeout=_DELETE_SECONDS)
        if self._opened is not None:
            await self._opened.stack.aclose()
            self._opened.compute.close()
            self._opened = None

    async def _open(self, run: StepContext) -> "_Opened":
        async with self._opening:
            if self._opened is None:
                options = self.options
                ended = run.dispatch.ended if run.dispatch is not None else None
                async with contextlib.AsyncExitStack() as stack:
                    server = KernelServer(options.address, options.port, options.listen)
                    await stack.enter_async_context(server.listening())
                    compute = await asyncio.to_thread(Compute, options)
                    await stack.enter_async_context(sweeping(compute.owned(), ended))
                    images = Images(compute, options.owner)
                    self._opened = _Opened(compute, server, images, stack.pop_all())
            return self._opened


@dataclass(frozen=True, slots=True)
class _Opened:
    """The connections and servers that the first step opens."""

    compute: Compute
    server: KernelServer
    images: Images
    stack: contextlib.AsyncExitStack


class GceHost:
    """The cloud for one step: a `VmHost`."""

    most_points = 0

    def __init__(
        self,
        gce: Gce,
        opened: _Opened,
        run: StepContext,
        image: str | None,
        own: KernelImages,
        here: Probed | None,
    ) -> None:
        """`image` is the helper; None if each kernel gets an image of its `own`."""
        self.accelerator = gce.options.accelerator
        self.limits = LIMITS[gce.options.emulated]
        self.by_hand = here or Probed(accelerator=Accelerator.KVM)
        self._gce = gce
        self._options = gce.options
        self._compute = opened.compute
        self._server = opened.server
        self._image = image
        self._own = own
        self._run = run
        self._lease = run.assignment.lease
        spec = run.spec(ReproduceSpec)
        self._seconds = spec.time + 2 * self.limits.boot + spec.vm.memory / 10 + _BEYOND_SECONDS
        self._sums: dict[Path, str] = {}

    def room(self, shape: VmShape) -> tuple[int, int]:
        """Return what a VM takes of this host."""
        return _ROOM

    def command_line(self, shape: VmShape, words: str) -> str:
        """Return the kernel's command line, which limits CPUs and memory to the shape."""
        # Machine types come in steps, so the machine may be larger than the shape. The helper
        # replaces `kgym_net=dhcp` by its own lease, as not every tested kernel can ask for one.
        line = kernel_words(shape, self.by_hand, words)
        own = [f"nr_cpus={shape.cpus}", f"mem={shape.memory}M", "kgym_net=dhcp"]
        return " ".join([*line, *own, *shape.append.split()])

    def capture_command_line(self) -> str:
        """Return the command line that a capture kernel needs."""
        return capture_command_line(self.by_hand)

    def describe_boot(self, boot: Boot) -> str:
        """Return the request to the service."""
        place = next(iter(self._gce.zones.choices()))
        name = instance_name(self._lease, boot.name)
        source = self._image or "(one of its kernel)", self.command_line(boot.shape, boot.words)
        asked = self._asked(name, place, boot.shape, {}, source)
        return json.dumps({"zone": place.zone, **asked}, indent=1)

    def instead(self) -> None:
        """Return None: there is nothing slower to fall back to."""

    @asynccontextmanager
    async def running(self, boot: Boot, on_console: Callable[[bytes], None]) -> AsyncIterator[Vm]:
        """Start a VM, and delete it at the end whatever happens."""
        name, making = instance_name(self._lease, boot.name), _Making()
        with ExitStack() as stack:
            source = await self._source(boot, stack)
            async with self._gce.slots:
                try:
                    place, made = await self._made(name, boot.shape, source, making)
                    ssh = (str(made.network_interfaces[0].network_i_p), self._options.ssh_port)
                    which, helped = (place, name, int(made.id)), bool(source[1])
                    vm = GceVm(self._compute, *which, ssh, on_console, helped=helped)
                    async with vm.followed():
                        try:
                            yield vm
                        finally:
                            if vm.refused:
                                self._gce.refused.add(self._sums[boot.kernel])
                finally:
                    await self._delete(name, making)

    async def _source(self, boot: Boot, stack: ExitStack) -> tuple[str, str]:
        """Return the image that the VM boots, and the helper's instructions, if any."""
        line = self.command_line(boot.shape, boot.words)
        if self._image is None or await self._sum(boot.kernel) in self._gce.refused:
            return await self._own.of(boot.kernel, boot.initrd, line), ""
        lines = [
            f"{stack.enter_context(self._server.served(path))} {await self._sum(path)}"
            for path in (boot.kernel, boot.initrd)
        ]
        return self._image, "\n".join([*lines, line, ""])

    async def _made(
        self, name: str, shape: VmShape, source: tuple[str, str], making: "_Making"
    ) -> tuple[Place, Any]:
        """Create the VM where there is capacity; return its place and the service's instance."""
        end = time.time() + self._seconds
        marks = labels(self._options.owner, self._lease, making.boot, end)
        refused: NoRoom | None = None
        for place in self._gce.zones.choices():
            asked = self._asked(name, place, shape, marks, source)
            inserting = self._compute.insert(place.zone, asked, str(uuid.uuid4()))
            making.tried[place.zone] = task = asyncio.create_task(inserting)
            try:
                await asyncio.shield(task)
            except NoRoom as error:
                del making.tried[place.zone]
                self._gce.zones.exhausted(place)
                self._run.log(f"no room in {place}: {error.message}")
                refused = error
                continue
            except Taken:
                pass  # it may be ours: the answer to the request may have been lost
            try:
                made = await self._compute.get(place.zone, name)
            except Gone as error:
                message = f"the VM {name} vanished before it started"
                raise VmLost("vm_vanished", message) from error
            if not making.has_made(made):
                message = f"another worker has created {name} for this attempt"
                raise InfrastructureError("vm_of_another", message)
            return place, made
        assert refused is not None
        raise InfrastructureError(refused.reason, f"in no zone: {refused.message}") from refused

    def _asked(
        self,
        name: str,
        place: Place,
        shape: VmShape,
        marks: dict[str, str],
        source: tuple[str, str],
    ) -> dict[str, Any]:
        options, (booted, words) = self._options, source
        interface = {"network": options.network}
        if options.subnet:
            interface["subnetwork"] = options.subnet
        scheduling: dict[str, Any] = {
            "automatic_restart": False,
            "instance_termination_action": "DELETE",
            "max_run_duration": {"seconds": int(self._seconds)},
            "provisioning_model": "SPOT" if place.spot else "STANDARD",
        }
        if place.spot:
            scheduling["on_host_maintenance"] = "TERMINATE"
        kind = machine_type(options.machine, shape)
        image = f"projects/{options.project}/global/images/{booted}"
        metadata = [{"key": "kgym-boot", "value": words}] if words else []
        return {
            "name": name,
            "machine_type": f"zones/{place.zone}/machineTypes/{kind}",
            "labels": marks,
            "disks": [
                {
                    "boot": True,
                    "auto_delete": True,
                    "initialize_params": {"source_image": image, "disk_size_gb": 10},
                }
            ],
            # No access config: no external address. No service account: nothing to steal.
            "network_interfaces": [interface],
            "service_accounts": [],
            "scheduling": scheduling,
            "metadata": {"items": metadata},
        }

    async def _delete(self, name: str, making: "_Making") -> None:
        """Delete the VM in every zone where it was requested; go on even if this is cancelled."""

        async def delete() -> None:
            for zone, inserting in making.tried.items():
                try:
                    # A request that nobody waits for may still create the VM.
                    await asyncio.wait({inserting}, timeout=_DELETE_SECONDS)
                    if inserting.done() and not inserting.cancelled():
                        inserting.exception()
                    async with asyncio.timeout(_DELETE_SECONDS):
                        # Another worker's VM of the same name is left alone.
                        if making.has_made(await self._compute.get(zone, name)):
                            await self._compute.delete(zone, name)
                except Gone:
                    continue
                except (InfrastructureError, TimeoutError) as error:
                    # The sweeper will find it, or the service ends it by max_run_duration.
                    self._run.log(f"{name} could not be deleted in {zone}: {error}")

        deleting = asyncio.create_task(delete())
        self._gce.deleting.add(deleting)
        deleting.add_done_callback(self._gce.deleting.discard)
        await asyncio.shield(deleting)

    async def _sum(self, path: Path) -> str:
        if path not in self._sums:
            self._sums[path] = await asyncio.to_thread(sha256_of, path)
        return self._sums[path]


@dataclass(frozen=True, slots=True)
class _Making:
    """The creation of one VM: a label by which it is recognised, and the request in each zone."""

    boot: uuid.UUID = field(default_factory=uuid.uuid4)
    tried: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def has_made(self, instance: Any) -> bool:
        """Return whether an instance of this name was made by this request."""
        return bool(instance.labels.get(BOOT) == self.boot.hex)


def machine_type(family: str, shape: VmShape) -> str:
    """Return the custom machine type for a VM."""
    # The service's rules: CPUs in pairs, memory in steps of 256 MiB, half to eight GiB for each
    # CPU.
    cpus = max(2, (shape.cpus + 1) // 2 * 2)
    memory = max(-(-shape.memory // 256) * 256, cpus * 512)
    while memory > cpus * 8192:
        cpus += 2
    return f"{family}-{cpus}-{memory}"
