"""New bundles of bugs: files named on the command line become a self-contained folder."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgym.bugs import bundle as bugs
from kgym.bugs.bug import Bug
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.transport.artifact_storage import sha256_of

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
