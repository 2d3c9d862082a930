"""Options of the commands that try a fix."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from kgym.api.steps import compilers
from kgym.bugs.bug import ProgramKind
from kgym.bugs.calibration import CONFIDENCES

Command = TypeVar("Command", bound=Callable[..., Any])
accept_option = click.option(
    "--accept-findings",
    metavar="REASON,…",
    default="",
    help="Findings that shall not stand in the way, by their reason; `all` for every one.",
)
kernel_option = click.option(
    "--kernel",
    metavar="NAME",
    help="Shared kernel to use in place of the bug's own, such as linux-5.10; NAME@KERNEL is the"
    " same, for all commands.",
)


root_option = click.option(
    "--root",
    type=click.Choice(["initramfs", "disk"]),
    help="What the guests start from: an initramfs, or Debian on ext4.  [default: the bundle's]",
)


def on_kernel(name: str, kernel: str | None) -> str:
    """Return the name of a bug on the kernel that --kernel gives, if it does."""
    return name if kernel is None else f"{name}@{kernel}"


class CompilerWords(click.ParamType[str]):
    """A compiler's name, or what it says of itself."""

    name = "compiler"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return it as it is; refuse what nobody knows."""
        try:
            compilers.asked(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


compiler_option = click.option(
    "--compiler",
    type=CompilerWords(),
    metavar="NAME",
    help="Such as gcc-12, bullseye/gcc-10, or what a compiler says of itself."
    "  [default: the bundle's]",
)
repro_option = click.option(
    "--repro",
    type=click.Choice(get_args(ProgramKind)),
    help="Reproducers to run, those on request, too: in C, syzkaller's, or both in turn.",
)


def effort_options(command: Command) -> Command:
    """Add what says how much is done to prove a fix: --confidence, --instances and --time."""
    for option in (
        click.option(
            "--time", type=click.FloatRange(0, 86400, min_open=True), help="Seconds on each."
        ),
        click.option(
            "--instances", type=click.IntRange(1, 1000), help="VMs that a fix has to survive."
        ),
        click.option(
            "--confidence",
            type=click.FloatRange(0.5, 0.9999),
            default=CONFIDENCES[0],
            show_default=True,
            help="How sure to be of a fix.",
        ),
    ):
        command = option(command)
    return command
