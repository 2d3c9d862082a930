"""`kgym shell`."""

import ast
import asyncio
import code
import inspect
import signal
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import click

from kgym.bench import attempt_files, dataset
from kgym.client import AsyncClient
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.platforms.scheduler_choice import address


@click.command()
@click.argument("folders", metavar="[DIR]...", nargs=-1, type=FOLDER)
def shell(folders: tuple[Path, ...]) -> None:
    """Open a Python shell with a client of a platform, and the datasets and results in DIRs.

    It has tab completion and `await`: IPython if that is installed, else Python's own.

    \b
    client      AsyncClient of the scheduler: `await client.job(1)`
    datasets    Dataset by DIR
    results     list of AttemptRecord by DIR
    """
    tried = [folder for folder in folders if (folder / attempt_files.NAME).exists()]
    names: dict[str, Any] = {
        "datasets": {str(folder): dataset.load(folder) for folder in folders},
        "results": {str(at): list(attempt_files.read(at / attempt_files.NAME)) for at in tried},
    }
    with address(work=True) as (url, token), asyncio.Runner() as runner:
        # From here on, an interruption ends a line of the shell, and not the command.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        names["client"] = AsyncClient(url, token)
        try:
            if find_spec("IPython"):
                import_module("IPython").start_ipython(argv=[], user_ns=names)
            else:
                _Console(names, runner).interact(f"Names: {', '.join(names)}", "")
        except SystemExit as end:
            if isinstance(end.code, str):
                raise click.ClickException(end.code) from None
            click.get_current_context().exit(end.code or 0)


class _Console(code.InteractiveConsole):
    """Python's console with `await`, as in `python -m asyncio`: tasks run while a line waits."""

    def __init__(self, names: dict[str, Any], runner: asyncio.Runner) -> None:
        super().__init__(names)
        self._runner = runner
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        with suppress(ImportError):  # some builds of Python lack readline
            import readline  # noqa: PLC0415
            import rlcompleter  # noqa: PLC0415

            readline.parse_and_bind("tab: complete")
            readline.set_completer(rlcompleter.Completer(names).complete)

    def runcode(self, code: CodeType) -> None:
        """Run a line, and what it awaits."""
        try:
            made = FunctionType(code, self.locals)()
            if inspect.iscoroutine(made):
                self._runner.run(made)
        except SystemExit:
            raise
        except BaseException:  # noqa: BLE001 - also an interruption, which ends a line
            self.showtraceback()
