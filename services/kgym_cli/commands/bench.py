"""`kgym bench`: datasets of bugs, and what is done with them; each verb is a module of its own."""

import click

from kgym_cli.lazy import Lazy, LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "door": Lazy("bench_door", "Answer for a bug to a container of kEnv.", remote=True),
        "export": Lazy("bench_export", "Write bugs of a dataset, in a form of one's choice."),
        "import": Lazy("bench_import", "Make a dataset of what others have published."),
        "judge": Lazy("bench_judge", "Let a model vote on whether patches equal the developers'."),
        "list": Lazy("bench_list", "List bugs of a dataset."),
        "publish": Lazy("bench_publish", "Copy bugs and attempts to where the monitor reads them."),
        "report": Lazy("bench_report", "Show the figures of a campaign."),
        "run": Lazy("bench_run", "Run a campaign: agents on bugs.", remote=True),
        "site": Lazy("bench_site", "Write pages for any web server."),
        "show": Lazy("bench_show", "Show a dataset, or a bug of it."),
        "validate": Lazy("bench_validate", "Try bugs, before agents are.", remote=True),
        "watch": Lazy("bench_watch", "Keep syzbot's bugs, with their fixes and discussions."),
    },
)
def bench() -> None:
    """Datasets of bugs, for agents to be measured on.

    A dataset is a folder with a name and a SHA-256, and never changes.
    """
