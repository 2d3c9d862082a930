"""Options that choose bugs of a dataset, for all commands that take one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
from pydantic import ValidationError

from kgym.bench import bug_choice
from kgym.bench.bug_choice import BugChoice
from kgym.bench.bug_record import Status
from kgym.bench.dataset import Dataset
from kgym.errors import UserError
from kgym_cli.inputs.parameters import Moment

Command = TypeVar("Command", bound=Callable[..., Any])
Side = Literal["before", "after"]
dataset_argument = click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False)
)


@dataclass(frozen=True, slots=True)
class ChosenBugs:
    """What the options say."""

    conditions: dict[str, Any]
    """Those that are given, as `BugChoice` names them."""
    cutoff: datetime | None
    side: Side

    def of(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Return the bugs that are meant; all of them are the dataset itself.

        Raises NotFound `no_such_bug` for an id that none has, UserError `bad_choice`.
        """
        if self.cutoff is not None:
            before, after = bug_choice.split(dataset, self.cutoff)
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
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError("bad_choice", f"{where}: {first['msg']}") from error


# Of each condition: its name in `BugChoice`, the option, and what click is told.
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ids", "--bug", {"multiple": True, "metavar": "ID", "help": "Its id, or how it begins."}),
    ("status", "--status", {"type": click.Choice(get_args(Status))}),
    ("subsystems", "--subsystem", {"multiple": True, "help": "As syzbot names it: net, ext4."}),
    (
        "types",
        "--type",
        {"multiple": True, "help": "As syzkaller sorts titles: WARNING, KASAN-READ."},
    ),
    (
        "classes",
        "--class",
        {"multiple": True, "help": "What titles begin with: 'KASAN use-after-free'."},
    ),
    ("text", "--text", {"help": "Text in a title, in any case."}),
    ("compiler", "--compiler", {"help": "Text in its compiler's words: gcc, 'clang version 15'."}),
    ("reproducer", "--reproducer", {"type": click.Choice(("c", "syz", "both", "none"))}),
    (
        "has_cause",
        "--cause/--no-cause",
        {"default": None, "help": "Whether the commit is known that brought it."},
    ),
    (
        "racy",
        "--racy/--not-racy",
        {"default": None, "help": "Whether it showed in some of its runs alone, when validated."},
    ),
    ("reported_from", "--reported-from", {"type": Moment()}),
    ("reported_before", "--reported-before", {"type": Moment()}),
    ("fixed_from", "--fixed-from", {"type": Moment()}),
    ("fixed_before", "--fixed-before", {"type": Moment()}),
    (
        "days_open_from",
        "--days-open-from",
        {"type": click.FloatRange(0), "help": "Days from its report to its fix, at least."},
    ),
    ("days_open_to", "--days-open-to", {"type": click.FloatRange(0), "help": "At most."}),
    (
        "lines_from",
        "--lines-from",
        {"type": click.IntRange(0), "help": "Lines that the fix changes, at least."},
    ),
    ("lines_to", "--lines-to", {"type": click.IntRange(0), "help": "At most."}),
    (
        "files_to",
        "--files-to",
        {"type": click.IntRange(0), "help": "Files that the fix changes, at most."},
    ),
    ("touches", "--touches", {"metavar": "PATH", "help": "The fix changes a file below it."}),
)


def choice_options(command: Command) -> Callable[..., Any]:
    """Add the options; the command gets what they say as `chosen`, a `ChosenBugs`."""

    @wraps(command)
    def choosing(*args: Any, cutoff: datetime | None, side: Side, **given: Any) -> Any:
        options = {name: given.pop(name) for name, _, _ in _OPTIONS}
        conditions = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value not in {None, ()}
        }
        return command(*args, chosen=ChosenBugs(conditions, cutoff, side), **given)

    wrapped: Callable[..., Any] = choosing
    for option in (
        click.option(
            "--side",
            type=click.Choice(get_args(Side)),
            default="after",
            show_default=True,
            help="Of the cutoff: fixed up to it, or after it.",
        ),
        click.option(
            "--cutoff",
            type=Moment(),
            help="A model's knowledge cutoff: only bugs whose fix is on one side of it.",
        ),
        *(click.option(option, name, **how) for name, option, how in reversed(_OPTIONS)),
    ):
        wrapped = option(wrapped)
    return wrapped
