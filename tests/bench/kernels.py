"""What other kernels cost: those built by toolchain images, near ones, guests with disks.

toolchain_s      a compiler in an image taken and mounted, once the image is made, by a new worker
near_commit_ratio  seconds until there is the entry of a commit that differs in 20 C files from one
                 that is there, over those from scratch; sources and configs are known in both
near_config_ratio  likewise, of a config with one driver more
disk_boot_ratio  seconds from QEMU's start to ready, from Debian on ext4 over an initramfs
"""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from kgym.configs import data_folder
from kgym.host import process_logs
from kgym.host.sandbox import remove
from tests.bench import kernels_disk, kernels_near, kernels_toolchains
from tests.figures import parser, show

# Measures in a folder of its own, so many rounds.
Part = Callable[[Path, int], Awaitable[Mapping[str, float]]]
PARTS: dict[str, Part] = {
    "toolchains": kernels_toolchains.measured,
    "near": kernels_near.measured,
    "disk": kernels_disk.measured,
}
# Most that is good.
GOALS: dict[str, float] = {**kernels_toolchains.GOALS, **kernels_near.GOALS, **kernels_disk.GOALS}


async def measured(names: list[str], rounds: int) -> dict[str, float]:
    """Return the figures of these parts."""
    figures: dict[str, float] = {}
    for name in names:
        work = Path(tempfile.mkdtemp(prefix="bench-", dir=data_folder()))
        try:
            figures |= await PARTS[name](work, rounds)
        finally:
            await asyncio.to_thread(remove, work)
    return figures


def main() -> None:
    """Measure, and print a table."""
    words = parser(__doc__)
    words.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    words.add_argument("--rounds", type=int, default=5)
    options = words.parse_args()
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    show(asyncio.run(measured(options.parts, options.rounds)), options, GOALS)


if __name__ == "__main__":
    main()
