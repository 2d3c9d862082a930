"""Options that select bugs of a dataset, shared by all commands that read one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Literal, get_args

import click

from kgym.api.faults import refused_at
from kgym.bench import bug_choice
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import Status
from kgym.bench.dataset import Dataset
from kgym_cli.inputs.parameters import FOLDER, Command, Moment, parameters
from kgym_cli.output import people

Side = Literal["before", "after"]
dataset_argument = click.argument("folder", metavar="DIR", type=FOLDER)


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
        with refused_at(dataset.name, "bad_choice"):
            choice = BugChoice.model_validate(given)
            return choice.of(dataset, name or f"{dataset.name}-chosen")


# An option for each field of `BugChoice`, and the cutoff's.
_options = parameters(
    click.option("--bug", "ids", multiple=True, metavar="ID", help="Bug id, or a prefix of it."),
    click.option("--status", type=click.Choice(get_args(Status))),
    click.option("--subsystem", "subsystems", multiple=True, help="syzbot's name: net, ext4."),
    click.option(
        "--type",
        "types",
        multiple=True,
        help="Prefix of syzkaller's type of the title: WARNING, KASAN.",
    ),
    click.option(
        "--class",
        "classes",
        multiple=True,
        help="Prefix of the title: KASAN, 'KASAN use-after-free'.",
    ),
    click.option("--text", help="Text in the title, ignoring case."),
    click.option("--compiler", help="Text in the compiler's version: gcc, 'clang version 15'."),
    click.option("--reproducer", type=click.Choice(("c", "syz", "both", "none"))),
    click.option(
        "--cause/--no-cause",
        "has_cause",
        default=None,
        help="Whether the commit that introduced it is known.",
    ),
    click.option(
        "--racy/--not-racy", default=None, help="Whether only some validation runs reproduced it."
    ),
    click.option("--reported-from", type=Moment()),
    click.option("--reported-before", type=Moment()),
    click.option("--fixed-from", type=Moment()),
    click.option("--fixed-before", type=Moment()),
    click.option(
        "--days-open-from", type=click.FloatRange(0), help="Minimum days from report to fix."
    ),
    click.option("--days-open-to", type=click.FloatRange(0), help="Maximum."),
    click.option(
        "--lines-from", type=click.IntRange(0), help="Minimum lines that the fix changes."
    ),
    click.option("--lines-to", type=click.IntRange(0), help="Maximum."),
    click.option("--files-to", type=click.IntRange(0), help="Maximum files that the fix changes."),
    click.option("--touches", metavar="PATH", help="The fix changes a file below this path."),
    click.option(
        "--cutoff",
        type=Moment(),
        help="A model's knowledge cutoff: only bugs fixed on one side of it.",
    ),
    click.option(
        "--side",
        type=click.Choice(get_args(Side)),
        default="after",
        help="Bugs fixed before or after the cutoff.",
    ),
)


def choice_options(command: Command) -> Callable[..., Any]:
    """Add the options to a command, which gets them as `chosen`, a `ChosenBugs`."""

    @wraps(command)
    def choosing(*args: Any, cutoff: datetime | None, side: Side, **given: Any) -> Any:
        options = {name: given.pop(name) for name in BugChoice.model_fields}
        conditions = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value not in {None, ()}
        }
        return command(*args, chosen=ChosenBugs(conditions, cutoff, side), **given)

    return _options(choosing)
