"""requirements.lock serves everywhere that the project does."""

import re
import subprocess
import sys
from importlib.metadata import metadata

import pytest
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT

# The Python of Debian 12, which the images have.
OLDEST = "3.11.2"


def test_every_package_of_the_lock_runs_on_the_oldest_python() -> None:
    names = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    assert len(names) > 100
    wanted = {name: metadata(name)["Requires-Python"] or "" for name in names}
    assert [name for name, python in wanted.items() if OLDEST not in SpecifierSet(python)] == []


@pytest.mark.thorough
def test_the_lock_names_all_that_its_packages_need() -> None:
    """It is installed without a look for more: what it left out would be missing."""
    check = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
