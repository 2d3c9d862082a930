"""`kgym bug new`."""

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from pydantic import Field

from kgym.api.jobs import JobRequest, JobView
from kgym.api.steps import InstanceOutcome, ReproduceResult, ReproduceSpec, Verdict
from kgym.bugs import bundle as bugs
from kgym.bugs import earlier_jobs
from kgym.bugs.bug import BEFORE, Bug
from kgym.bugs.conclusion import conclusion
from kgym.configs import CONFIGS
from kgym.crash.report import parse
from kgym.errors import UserError
from kgym.transport.artifact_storage import sha256_of
from kgym_cli.inputs import compressed_files
from kgym_cli.inputs.parameters import PATH, SECONDS, parameters
from kgym_cli.jobs.job_answer import exit_status
from kgym_cli.jobs.job_progress import follow
from kgym_cli.output import Exit, json_option, leave, people, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import scheduler

# Title of a bug that has not been seen to crash.
UNSEEN = "not seen yet"
_COMMIT = re.compile(r"[\w][\w./-]*")
_FORMS = (
    "a shared kernel ({shared}), a source package (linux-source-…), a folder with a kernel's"
    " source, a tarball of one, or a repository as URL@COMMIT"
)


@dataclass(frozen=True, slots=True)
class NewBundle:
    """Parts of a bundle: files to copy, and a kernel as `kernel_table` reads it."""

    kernel: str
    reproducer: Path
    title: str = UNSEEN
    alt_titles: Sequence[str] = ()
    config: Path | None = None
    fragments: Sequence[Path] = ()
    compiler: str | None = None
    time: float | None = None
    instances: int | None = None
    regress: Path | None = None
    fix: Path | None = None

    def titled(self, title: str, alt_titles: Sequence[str]) -> "NewBundle":
        """Return a copy with the observed titles."""
        return replace(self, title=title, alt_titles=alt_titles)

    def write(self, folder: Path) -> Bug:
        """Write the new folder; return its bug.

        Raises UserError `bad_option`, and `bad_bundle` as `bug.load` does; nothing is left then.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError("bad_option", f"{folder} already exists: name a new folder")
        table = kernel_table(self.kernel)
        if "use" not in table and self.config is None and not self.fragments:
            raise UserError("bad_option", "this kernel needs --config FILE, or --fragment FILE")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Copies, not links: the bundle must still build after its sources have moved.
            for name, path in self._files().items():
                shutil.copyfile(path, folder / name)
            self.write_toml(folder)
            return bugs.load(str(folder.absolute()))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise UserError("cannot_read", f"{error.filename}: {error.strerror}") from error
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def write_toml(self, folder: Path) -> None:
        """Write `bug.toml`, replacing an old one."""
        kernel = kernel_table(self.kernel)
        if "use" not in kernel:
            kernel |= {"compiler": self.compiler} if self.compiler else {}
            if self.config is not None:
                kernel["config"] = "kernel.config"
            else:
                names = [name for name in self._files() if name.endswith(".fragment")]
                kernel |= {"base": "allnoconfig", "fragments": names}
        program: dict[str, object] = {"file": self._program}
        program |= {} if self._program.endswith(".c") else {"kind": "syz"}
        program |= {"time": self.time} if self.time is not None else {}
        program |= {"instances": self.instances} if self.instances is not None else {}
        tables: dict[str, dict[str, object]] = {"kernel": kernel, "reproducer": program}
        tables |= {"regress": {"patch": "regress.patch"}} if self.regress else {}
        tables |= {"fix": {"patch": "fix.patch"}} if self.fix else {}
        head = {"title": self.title, "alt_titles": list(self.alt_titles)}
        parts = [_lines(head), *(f"[{name}]\n{_lines(table)}" for name, table in tables.items())]
        (folder / "bug.toml").write_text("\n".join(parts))

    @property
    def _program(self) -> str:
        return "repro.c" if self.reproducer.suffix == ".c" else "repro.syz"

    def _files(self) -> dict[str, Path]:
        """Return the files to copy, by their names in the bundle."""
        fragments = {f"config-{n}.fragment": path for n, path in enumerate(self.fragments)}
        others = {"kernel.config": self.config, "regress.patch": self.regress}
        others |= {"fix.patch": self.fix}
        there = {name: path for name, path in others.items() if path is not None}
        return {self._program: self.reproducer, **fragments, **there}


def kernel_table(named: str) -> dict[str, object]:
    """Return the `[kernel]` table for a kernel's name; raise UserError `bad_option`."""
    shared = sorted(path.stem for path in (CONFIGS / "kernels").glob("*.toml"))
    url, _, commit = named.rpartition("@")
    path = Path(named).expanduser()
    if named in shared:
        return {"use": named}
    if named.startswith("linux-source-"):
        return {"packages": [named]}
    if path.is_dir():
        return {"tree": str(path.resolve())}
    if path.is_file():
        return {"tarball": str(path.resolve()), "sha256": sha256_of(path)}
    if url and _COMMIT.fullmatch(commit):
        place = url if "://" in url else str(Path(url).expanduser().resolve())
        return {"git": place, "commit": commit}
    forms = _FORMS.format(shared=", ".join(shared))
    raise UserError("bad_option", f"{named!r} names no kernel: give {forms}")


def _lines(table: Mapping[str, object]) -> str:
    """Return a table's lines in TOML."""
    # JSON's strings, numbers and lists are valid TOML, except that TOML 1.0 forbids a raw DEL.
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in table.items()}
    return "".join(f"{key} = {text}\n" for key, text in texts.items()).replace("\x7f", "\\u007f")


class NewBugAnswer(Answer):
    """Output of `bug new --json`."""

    bug: str
    folder: Path
    title: str | None = Field(description="the observed crash's, or the given one")
    verdict: Verdict | None = Field(description="null if no run has ended")
    reason: str | None
    job: int | None


_file = click.Path(path_type=Path, exists=True, dir_okay=False)
_options = parameters(
    click.option("--kernel", help="A shared kernel, linux-source-…, a folder, or URL@COMMIT."),
    click.option("--repro", type=_file, help="Reproducer: a C file, or a syzkaller program."),
    click.option("--config", type=_file, help="The kernel's complete .config."),
    click.option(
        "--fragment",
        "fragments",
        multiple=True,
        type=_file,
        help="Part of a .config, merged into allnoconfig; may be repeated.",
    ),
    click.option("--compiler", help="gcc, gcc-12, clang-16, …"),
    click.option("--time", type=SECONDS, help="Seconds per run."),
    click.option("--instances", type=click.IntRange(1, 1000), help="VMs."),
    click.option("--regress", type=_file, help="Patch that brings the bug back."),
    click.option("--fix", type=_file, help="Known fix."),
    click.option("--title", help="syzbot's title of the crash.  [default: as observed]"),
    click.option("--log", type=_file, help="Console log of the crash, to take its title from."),
    click.option("--no-run", is_flag=True, help="Only write the bundle."),
)


@click.command()
@click.argument("folder", type=PATH)
@_options
@json_option(NewBugAnswer)
def new(folder: Path, no_run: bool, as_json: bool, **given: Any) -> None:
    """Write the bundle of your own bug to a new FOLDER, run it once, and record its title.

    On a terminal, it asks for missing options. The exit status is 0 if the bug shows (or
    with --no-run), 1 if it does not, 2 for bad input, 3 if there is no verdict.
    """
    alt_titles: list[str] = []
    if given["log"] and not given["title"]:
        given["title"], *alt_titles = _titles(given["log"])
    wanted = _asked(given)
    bundle = NewBundle(
        kernel=wanted["kernel"],
        reproducer=wanted["repro"],
        title=wanted["title"] or UNSEEN,
        alt_titles=alt_titles,
        **{name: wanted[name] for name in ("config", "fragments", "compiler", "time")},
        **{name: wanted[name] for name in ("instances", "regress", "fix")},
    )
    bug = bundle.write(folder)
    people.print(f"written: {folder}")
    job = None if no_run else _ran(bug, any_crash=wanted["title"] is None)
    result = _result(job)
    if job and result and result.title and wanted["title"] is None:
        # Titles of one crash vary between VMs, for instance by access size; the others become
        # alternatives of the bundle.
        seen = [
            instance for instance in result.instances if instance.outcome is InstanceOutcome.CRASH
        ]
        others = {alt for bug in seen if bug.title == result.title for alt in bug.alt_titles}
        bundle = bundle.titled(result.title, sorted(others - {result.title}))
        bundle.write_toml(folder)
    answer = NewBugAnswer(
        bug=bug.name,
        folder=folder.absolute(),
        title=None if bundle.title == UNSEEN else bundle.title,
        verdict=result.verdict if result else None,
        reason=result.reason if result else None,
        job=job.id if job else None,
    )
    if not printed_json(answer, as_json):
        _print(answer)
    leave(exit_status(conclusion(job).answer) if job else Exit.OK)


def _titles(log: Path) -> list[str]:
    """Return the title of the log's crash, and its other titles; raise UserError `bad_option`."""
    report = parse(compressed_files.read(log, whole=False))
    if report is None or report.frame == "corrupted":
        why = report.corrupted_reason if report else "it holds no crash"
        raise UserError("bad_option", f"{log} gives no title: {why}; give --title instead")
    if report.corrupted:
        people.print(f"{log} is damaged: {report.corrupted_reason}")
    return [report.title, *report.alt_titles]


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options; on a terminal, prompt for missing ones."""
    wanted = dict(given)
    missing = [name for name in ("kernel", "repro") if not wanted[name]]
    if not sys.stdin.isatty():
        # Scripts and agents have no terminal: a prompt would hang them.
        if missing:
            names = " and ".join(f"--{name}" for name in missing)
            raise UserError("bad_option", f"give {names}: there is no terminal to ask at")
        return wanted
    if not missing:
        return wanted
    if not wanted["kernel"]:
        wanted["kernel"] = click.prompt(
            "Kernel (a shared one, linux-source-…, a folder, URL@COMMIT)", "linux-6.1", err=True
        )
    if "use" not in kernel_table(wanted["kernel"]) and not (
        wanted["config"] or wanted["fragments"]
    ):
        wanted["config"] = click.prompt("Its whole .config", type=_file, err=True)
    if not wanted["repro"]:
        wanted["repro"] = click.prompt("Reproducer (C, or syzkaller's)", type=_file, err=True)
    for name, words in (("regress", "A patch that brings the bug back"), ("fix", "Its known fix")):
        if wanted[name] is None:
            asked = click.prompt(f"{words} (none: Enter)", "", show_default=False, err=True)
            wanted[name] = Path(asked) if asked else None
    return wanted


def _ran(bug: Bug, *, any_crash: bool) -> JobView:
    """Run the bug once. With `any_crash`, any title counts: none is known yet."""
    request = bug.job(None)
    steps = [
        step.model_copy(update={"titles": []})
        if any_crash and isinstance(step, ReproduceSpec)
        else step
        for step in request.steps
    ]
    with scheduler(work=True) as client:
        job = earlier_jobs.submit(client, JobRequest(steps=steps, tags=request.tags)).job
        people.print(f"job {job.id}")
        return follow(client, job)


def _result(job: JobView | None) -> ReproduceResult | None:
    step = job.step(BEFORE) if job else None
    return step.result if step and isinstance(step.result, ReproduceResult) else None


def _print(answer: NewBugAnswer) -> None:
    if answer.verdict is not None:
        results.print(f"{answer.verdict}: {answer.reason}")
    title = answer.title or f"{UNSEEN}; write it into {answer.folder / 'bug.toml'}"
    results.print(f"{answer.folder}: {title}")
