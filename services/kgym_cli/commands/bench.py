"""`kgym bench`: datasets of bugs; its verbs are in modules of their own."""

import click

from kgym_cli.lazy import Lazy, LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "door": Lazy("bench_door", "Serve a bug to a kEnv container.", remote=True),
        "export": Lazy("bench_export", "Export bugs of a dataset in a chosen format."),
        "import": Lazy("bench_import", "Import a published dataset."),
        "judge": Lazy(
            "bench_judge", "Let a model vote on whether patches are equivalent to the developers'."
        ),
        "judge-patches": Lazy("bench_run", "Try patches made elsewhere.", remote=True),
        "list": Lazy("bench_dataset", "List bugs of a dataset."),
        "publish": Lazy("bench_publication", "Publish bugs and attempts for the monitor."),
        "pull": Lazy("bench_hub", "Pull a dataset or results from Hugging Face's hub."),
        "push": Lazy("bench_hub", "Push a dataset or results to Hugging Face's hub."),
        "query": Lazy("bench_figures", "Show figures in nested groups."),
        "report": Lazy("bench_figures", "Show the figures of a campaign."),
        "run": Lazy("bench_run", "Run a campaign: agents on bugs.", remote=True),
        "site": Lazy("bench_publication", "Write a benchmark's pages for any web server."),
        "show": Lazy("bench_dataset", "Show a dataset, or one of its bugs."),
        "trajectories": Lazy(
            "bench_trajectories", "Print a campaign's conversations as data for training."
        ),
        "validate": Lazy(
            "bench_validate", "Validate bugs before agents are measured on them.", remote=True
        ),
        "verify": Lazy("bench_run", "Check published results.", remote=True),
        "watch": Lazy("bench_watch", "Mirror syzbot's bugs, with their fixes and discussions."),
    },
)
def bench() -> None:
    """Manage datasets of bugs on which agents are measured.

    A dataset is a folder with a name and a SHA-256. It never changes.
    """
