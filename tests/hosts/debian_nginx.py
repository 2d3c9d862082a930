"""nginx for tests: this machine's, or Debian's package, unpacked where nothing is installed."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.conftest import DATA


def nginx() -> Path | None:
    """Return the program; None where it cannot be had."""
    if (installed := Path("/usr/sbin/nginx")).exists():
        return installed
    kept = DATA / "debian" / "nginx"
    program = kept / "usr" / "sbin" / "nginx"
    if not program.exists():
        new = kept.with_name(f"nginx.{os.getpid()}")
        new.mkdir(parents=True)
        try:
            for words in (["apt-get", "download", "nginx"], ["sh", "-c", "dpkg-deb -x *.deb ."]):
                subprocess.run(words, cwd=new, check=True, capture_output=True, timeout=120)
            new.rename(kept)
        except (OSError, subprocess.SubprocessError):
            shutil.rmtree(new)
    # As on a host where it is installed: with its libraries, or not at all.
    works = program.exists() and subprocess.run([program, "-v"], check=False, capture_output=True)
    return program if works and works.returncode == 0 else None
