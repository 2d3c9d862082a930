"""Options that select bugs of a dataset, shared by all commands that read one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
from pydantic import ValidationError

from kgym.api.faults import first_fault
from kgym.bench import bug_choice
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import Status
from kgym.bench.dataset import Dataset
from kgym.errors import UserError
from kgym_cli.inputs.parameters import Moment
from kgym_cli.output import people

Command = TypeVar("Command", bound=Callable[..., Any])
Side = Literal["before", "after"]
dataset_argument = click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False)
)


@dataclass(frozen=True, slots=True)
class ChosenBugs:
    """Values of the options."""

    conditions: dict[str, Any]
    """Given conditions, by field of `BugChoice`."""
    cutoff: datetime | None
    side: Side

    def of(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Return the selected bugs; without conditions, the dataset itself.

        Raises NotFound `no_such_bug` for an unknown id, UserError `bad_choice`.
        """
        if self.cutoff is not None:
            before, after = bug_choice.split(dataset, self.cutoff)
            if undated := len(dataset) - len(before) - len(after):
                people.print(
                    f"{undated} of {len(dataset)} bugs are left out: the date of their fix is"
                    " unknown, so they are on neither side of the cutoff"
                )
            dataset = before if self.side == "before" else after
        if not self.conditions:
            return dataset if name is None else dataset.model_copy(update={"name": name})
        given = dict(self.conditions)
        if "ids" in given:
            given["ids"] = [dataset.get(bug_id).id for bug_id in given["ids"]]
        try:
            choice = BugChoice.model_validate(given)
            return choice.of(dataset, name or f"{dataset.name}-chosen")
        except ValidationError as error:
            raise UserError("bad_choice", first_fault(error)) from error


# Field of `BugChoice`, option, and arguments for click.
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ids", "--bug", {"multiple": True, "metavar": "ID", "help": "Bug id, or a prefix of it."}),
    ("status", "--status", {"type": click.Choice(get_args(Status))}),
    ("subsystems", "--subsystem", {"multiple": True, "help": "syzbot's name: net, ext4."}),
    (
        "types",
        "--type",
        {"multiple": True, "help": "Prefix of syzkaller's type of the title: WARNING, KASAN."},
    ),
    (
        "classes",
        "--class",
        {"multiple": True, "help": "Prefix of the title: KASAN, 'KASAN use-after-free'."},
    ),
    ("text", "--text", {"help": "Text in the title, ignoring case."}),
    (
        "compiler",
        "--compiler",
        {"help": "Text in the compiler's version: gcc, 'clang version 15'."},
    ),
    ("reproducer", "--reproducer", {"type": click.Choice(("c", "syz", "both", "none"))}),
    (
        "has_cause",
        "--cause/--no-cause",
        {"default": None, "help": "Whether the commit that introduced it is known."},
    ),
    (
        "racy",
        "--racy/--not-racy",
        {"default": None, "help": "Whether only some validation runs reproduced it."},
    ),
    ("reported_from", "--reported-from", {"type": Moment()}),
    ("reported_before", "--reported-before", {"type": Moment()}),
    ("fixed_from", "--fixed-from", {"type": Moment()}),
    ("fixed_before", "--fixed-before", {"type": Moment()}),
    (
        "days_open_from",
        "--days-open-from",
        {"type": click.FloatRange(0), "help": "Minimum days from report to fix."},
    ),
    ("days_open_to", "--days-open-to", {"type": click.FloatRange(0), "help": "Maximum."}),
    (
        "lines_from",
        "--lines-from",
        {"type": click.IntRange(0), "help": "Minimum lines that the fix changes."},
    ),
    ("lines_to", "--lines-to", {"type": click.IntRange(0), "help": "Maximum."}),
    (
        "files_to",
        "--files-to",
        {"type": click.IntRange(0), "help": "Maximum files that the fix changes."},
    ),
    (
        "touches",
        "--touches",
        {"metavar": "PATH", "help": "The fix changes a file below this path."},
    ),
)


def choice_options(command: Command) -> Callable[..., Any]:
    """Add the options to a command, which gets them as `chosen`, a `ChosenBugs`."""

    @wraps(command)
    def choosing(*args: Any, cutoff: datetime | None, side: Side, **given: Any) -> Any:
        options = {name: given.pop(name) for name, _, _ in _OPTIONS}
        conditions = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value not in {None, ()}
        }
        return command(*args, chosen=ChosenBugs(conditions, cutoff, side), **given)

    # In reverse: click shows options in the order of decorators, and the last one applied comes
    # first.
    wrapped: Callable[..., Any] = choosing
    for option in (
        click.option(
            "--side",
            type=click.Choice(get_args(Side)),
            default="after",
            show_default=True,
            help="Bugs fixed before or after the cutoff.",
        ),
        click.option(
            "--cutoff",
            type=Moment(),
            help="A model's knowledge cutoff: only bugs fixed on one side of it.",
        ),
        *(click.option(option, name, **how) for name, option, how in reversed(_OPTIONS)),
    ):
        wrapped = option(wrapped)
    return wrapped
