"""Options shared by the commands that test a fix."""

from typing import get_args

import click

from kgym.api.steps import compilers
from kgym.bugs.bug import ProgramKind
from kgym.bugs.calibration import CONFIDENCES
from kgym_cli.inputs.parameters import SECONDS, parameters

accept_option = click.option(
    "--accept-findings",
    metavar="REASON,…",
    default="",
    show_default=False,
    help="Findings that do not block, by reason; `all` for all of them.",
)
kernel_option = click.option(
    "--kernel",
    metavar="NAME",
    help="Shared kernel to use instead of the bug's own, such as linux-5.10; same as NAME@KERNEL,"
    " which all commands accept.",
)


root_option = click.option(
    "--root",
    type=click.Choice(["initramfs", "disk"]),
    help="Root of the guests: an initramfs, or Debian on ext4.  [default: the bundle's]",
)


def on_kernel(name: str, kernel: str | None) -> str:
    """Return the bug's name, on the kernel of --kernel if it is given."""
    return name if kernel is None else f"{name}@{kernel}"


class CompilerWords(click.ParamType[str]):
    """A compiler's name or version line."""

    name = "compiler"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value unchanged; refuse unknown compilers."""
        try:
            # Checked here, not after the job has waited in a queue.
            compilers.asked(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


compiler_option = click.option(
    "--compiler",
    type=CompilerWords(),
    metavar="NAME",
    help="Compiler, such as gcc-12, bullseye/gcc-10, or a version line.  [default: the bundle's]",
)
repro_option = click.option(
    "--repro",
    type=click.Choice(get_args(ProgramKind)),
    help="Reproducers to run: C, syzkaller's, or both in turn.",
)


compare_option = click.option(
    "--compare-fix",
    is_flag=True,
    help="Also compare what variants do with the fix and with the known fix.",
)


# The effort of a proof.
effort_options = parameters(
    click.option(
        "--confidence",
        type=click.FloatRange(0.5, 0.9999),
        default=CONFIDENCES[0],
        help="Required confidence in a fix.",
    ),
    click.option("--instances", type=click.IntRange(1, 1000), help="VMs that a fix must survive."),
    click.option("--time", type=SECONDS, help="Seconds per VM."),
)
