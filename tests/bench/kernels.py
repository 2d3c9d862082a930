"""What other kernels cost: those built by toolchain images, near ones, guests with disks.

toolchain_s      a compiler in an image taken and mounted, once the image is made, by a new worker
toolchain_ratio  processor time of bookworm's gcc-12 in its image, over the host's own gcc-12, on
                 the same object of the shipped kernel; left out where the host has another one
near_commit_ratio  seconds until there is the entry of a commit that differs in 20 C files from one
                 that is there, over those from scratch; sources and configs are known in both
near_config_ratio  likewise, of a config with one driver more
disk_boot_ratio  seconds from QEMU's start to ready, from Debian on ext4 over an initramfs
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from kgym.configs import data_folder
from kgym.host import process_logs
from kgym.host.sandbox import remove
from tests.bench import kernels_disk, kernels_near, kernels_toolchains

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    process_logs.configure(level=logging.WARNING)
    data_folder().mkdir(parents=True, exist_ok=True)
    figures = asyncio.run(measured(options.parts, options.rounds))
    if options.json:
        rounded = {name: round(value, 4) for name, value in figures.items()}
        sys.stdout.write(json.dumps(rounded) + "\n")
        return
    for name, value in figures.items():
        goal = f"   at most {GOALS[name]:g}" if name in GOALS else ""
        sys.stdout.write(f"{name:20}{value:10.4f}{goal}\n")


if __name__ == "__main__":
    main()
