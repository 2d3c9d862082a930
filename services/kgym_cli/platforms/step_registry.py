"""Registry of step kinds: handler, service and worker of each.

A new kind of step is its models in `kgym.api.steps`, its handler, and a line in `REGISTRY`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kgym.api.capabilities import Capabilities
from kgym.api.steps import StepKind
from kgym.configs import CONFIGS
from kgym.worker.context import Handler, StepContext

# Commands that only name kinds import this module too, so handlers are imported late.
if TYPE_CHECKING:
    from kgym.host.budget import Budget
    from kgym.transport.artifact_storage import Storage
    from kgym_builder.kernel_source.allowed_origins import Origins
    from kgym_builder.suitecache.nearest import NearRules
    from kgym_builder.suitecache.suitecache import SuiteCache
    from kgym_builder.toolchains.toolchains import Toolchains
    from kgym_cli.settings import Settings
    from kgym_vmmanager.vm.provider import Provider


class Service(StrEnum):
    """Service that runs a kind of steps: a folder of `services/`."""

    BUILDER = "builder"
    VMMANAGER = "vmmanager"
    TRACER = "tracer"


@dataclass(eq=False)
class Equipment:
    """Resources shared by the handlers of a process: budget of cores and memory, caches, binaries.

    `origins`: allowed origins of kernel sources. `archives`: source of toolchain images.
    `syzkaller`: folder of binaries for `syz` programs. `make_seconds`: limit of each run of make.
    `near`: SuiteCache entries from which others may be made. `provider`: runs VMs; default QEMU.
    """

    cache: Path
    origins: "Origins"
    syzkaller: Path | None = None
    archives: str | None = None
    _: KW_ONLY
    make_seconds: float | None = None
    near: "NearRules | None" = None
    provider: "Provider | None" = None

    @cached_property
    def budget(self) -> "Budget":
        """Cores and memory of this host."""
        from kgym.host.budget import Budget  # noqa: PLC0415

        return Budget.of_host()

    @cached_property
    def toolchains(self) -> "Toolchains":
        """Compilers of this host and of toolchain images."""
        from kgym_builder.toolchains.archives import Archives  # noqa: PLC0415
        from kgym_builder.toolchains.toolchains import Toolchains  # noqa: PLC0415

        return Toolchains(self.cache, Archives.read(self.archives))

    @cached_property
    def suite(self) -> "SuiteCache":
        """Compiled kernel trees of this host."""
        from kgym.host.sandbox_limits import SandboxLimits  # noqa: PLC0415
        from kgym_builder.suitecache.nearest import NearRules  # noqa: PLC0415
        from kgym_builder.suitecache.suitecache import SuiteCache  # noqa: PLC0415

        backports = CONFIGS / "backports"
        limits = SandboxLimits.of_host()
        if self.make_seconds is not None:
            limits = replace(limits, seconds=self.make_seconds)
        return SuiteCache(
            self.cache,
            backports,
            limits,
            origins=self.origins,
            budget=self.budget,
            toolchains=self.toolchains,
            near=self.near or NearRules(),
        )

    def permitting(self, origins: "Origins", near: "NearRules") -> "Equipment":
        """Return equipment with the same budget, compilers and folders, but other permissions."""
        other = replace(self, origins=origins, near=near)
        other.budget, other.toolchains = self.budget, self.toolchains
        return other

    async def fetch(self, run: StepContext, url: str, sha256: str, target: Path, most: int) -> None:
        """Download a file of at most `most` bytes from an allowed origin of kernel sources."""
        from kgym_builder.kernel_source.download import fetch  # noqa: PLC0415
        from kgym_builder.kernel_source.source_limits import SourceLimits  # noqa: PLC0415

        def report(stage: str, done: float, total: float | None) -> None:
            run.progress(f"{stage} root disk", done, total, "bytes")

        await fetch(url, target, sha256, self.origins, SourceLimits(archive=most), report)


def equipment(
    chosen: "Settings", cache: Path, syzkaller: Path | None, provider: "Provider | None" = None
) -> Equipment:
    """Return the equipment for steps that anybody with a token may have submitted."""
    return Equipment(
        cache,
        origins(chosen),
        syzkaller,
        chosen.archives,
        make_seconds=chosen.make_seconds,
        near=near_rules(chosen, alone=False),
        provider=provider,
    )


def origins(chosen: "Settings", folders: tuple[Path, ...] = ()) -> "Origins":
    """Return the origins that the operator allows; `folders` if none are named."""
    from kgym_builder.kernel_source.allowed_origins import Origins  # noqa: PLC0415

    named = chosen.sources, chosen.source_networks, folders
    return Origins.named(*named, chosen.mirrors.absolute(), chosen.patch_hosts)


def near_rules(chosen: "Settings", *, alone: bool) -> "NearRules":
    """Return which SuiteCache entries others are made from; `alone`: there are no tokens."""
    from kgym_builder.suitecache.nearest import NearRules  # noqa: PLC0415

    # Where several people submit, only entries of distributions' sources are bases: an entry of
    # somebody's own tree could poison the kernels that are made from it.
    bases = chosen.near_entries or ("any" if alone else "packages")
    return NearRules(bases, chosen.near_rehearsals)


def _builder(has: Equipment) -> Handler:
    from kgym_builder.build.build_step import Builder  # noqa: PLC0415

    return Builder(has.suite)


def _checker(has: Equipment) -> Handler:
    from kgym_builder.check.check_step import Checker  # noqa: PLC0415

    return Checker(has.suite, has.cache, has.origins)


def _reader(has: Equipment) -> Handler:
    from kgym_builder.source.source_step import SourceReader  # noqa: PLC0415

    return SourceReader(has.suite)


def _history(has: Equipment) -> Handler:
    from kgym_builder.source.history_step import HistoryLister  # noqa: PLC0415

    return HistoryLister(has.cache, has.origins)


def _syzkaller(has: Equipment) -> Handler:
    from kgym_builder.syzkaller.syzkaller_step import SyzkallerBuilder  # noqa: PLC0415

    return SyzkallerBuilder(has.cache, has.origins, has.syzkaller, has.budget)


def _reproduce(has: Equipment) -> Handler:
    from kgym_vmmanager.reproduce.reproduce_step import Reproduce  # noqa: PLC0415

    return Reproduce(
        has.cache, has.budget, syzkaller=has.syzkaller, fetch=has.fetch, provider=has.provider
    )


def _minimizer(_: Equipment) -> Handler:
    from kgym_tracer.minimize_step import Minimizer  # noqa: PLC0415

    return Minimizer()


@dataclass(frozen=True, slots=True)
class Registered:
    """Handler of a kind of steps, and needs of its worker."""

    handler: Callable[[Equipment], Handler]
    service: Service
    side_by_side: bool = False
    """Whether steps share the host's cores; otherwise one step at a time may use all of them."""
    runs_vms: bool = False
    """Whether its worker detects the accelerator of VMs."""
    extras: tuple[str, ...] = ()
    """Extras of the installed package, besides `worker`."""


REGISTRY: Mapping[StepKind, Registered] = {
    # Builds use all cores of a host through make -j, so two at once would only compete.
    StepKind.BUILD: Registered(_builder, Service.BUILDER),
    StepKind.CHECK: Registered(_checker, Service.BUILDER, side_by_side=True),
    StepKind.SOURCE: Registered(_reader, Service.BUILDER, side_by_side=True),
    StepKind.REPRODUCE: Registered(_reproduce, Service.VMMANAGER, side_by_side=True, runs_vms=True),
    StepKind.SYZKALLER: Registered(_syzkaller, Service.BUILDER),
    StepKind.HISTORY: Registered(_history, Service.BUILDER, side_by_side=True),
    StepKind.MINIMIZE: Registered(_minimizer, Service.TRACER, extras=("tracer",)),
}


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """Kinds and number of parallel steps of a worker."""

    kinds: tuple[StepKind, ...]
    slots: int = 1


def workers_of_one_host() -> list[WorkerShape]:
    """Return the workers of a host that runs everything: one per kind."""
    from kgym.host.resources import Host  # noqa: PLC0415

    cores = Host.here().cores
    return [
        WorkerShape((kind,), cores if entry.side_by_side else 1) for kind, entry in REGISTRY.items()
    ]


def kinds_named(text: str) -> list[StepKind]:
    """Return the kinds in a list such as `build,check`; a service (`builder`) means its kinds.

    Raises ValueError for an unknown word.
    """
    kinds: dict[StepKind, None] = {}
    for word in (part.strip() for part in text.split(",")):
        of_service = [kind for kind, entry in REGISTRY.items() if entry.service == word]
        kinds |= dict.fromkeys(of_service or [StepKind(word)])
    return list(kinds)


def handlers(kinds: Collection[StepKind], has: Equipment) -> dict[StepKind, Handler]:
    """Return the handlers of these kinds."""
    return {kind: REGISTRY[kind].handler(has) for kind in kinds}


def extras_of(kinds: Collection[StepKind]) -> list[str]:
    """Return the extras of the installed package that these kinds need."""
    return list(dict.fromkeys(["worker", *(extra for k in kinds for extra in REGISTRY[k].extras)]))


def entries(kinds: Collection[StepKind], has: Equipment) -> "SuiteCache | None":
    """Return this host's SuiteCache if one of the kinds uses it."""
    uses = any(REGISTRY[kind].service is Service.BUILDER for kind in kinds)
    return has.suite if uses else None


async def looking(
    kinds: Collection[StepKind], has: Equipment, storage: "Storage"
) -> Callable[[], Awaitable[Capabilities]]:
    """Return a function that detects the capabilities of a worker of these kinds.

    The accelerator is tried only once.
    """
    from kgym.host.detection import detect  # noqa: PLC0415

    accelerator = provider = None
    if any(REGISTRY[kind].runs_vms for kind in kinds):
        from kgym_vmmanager.vm.qemu_provider import Qemu  # noqa: PLC0415

        provider = has.provider or Qemu()
        accelerator = await provider.accelerator(has.cache)
    builds = any(REGISTRY[kind].service is Service.BUILDER for kind in kinds)

    async def detected() -> Capabilities:
        offered = await has.toolchains.offered(storage) if builds else ()
        host = await asyncio.to_thread(detect, accelerator, has.syzkaller, offered)
        return of_provider(host, provider)

    return detected


def of_provider(host: Capabilities, provider: "Provider | None") -> Capabilities:
    """Return capabilities with the provider's: in a cloud, VMs may be larger than this host."""
    if provider is None:
        return host
    offered: dict[str, object] = {"dumps": list(provider.dumps)}
    if provider.capacity is not None:
        cores, memory = provider.capacity
        offered |= {"cores": max(cores, host.cores), "memory": max(memory, host.memory)}
    return host.model_copy(update=offered)
