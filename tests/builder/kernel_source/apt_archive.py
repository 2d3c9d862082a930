"""A signed archive of Debian packages: one suite, and one package with a kernel's source."""

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

NAME = "linux-source-9.9"


class AptArchive:
    """The archive in `folder`, of the suite `suite`."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.folder = folder
        self.suite = suite
        # Of the key that signs it.
        self.keyring = folder.parent / "keyring.gpg"
        self._keys = folder.parent / "keys"
        self._keys.mkdir(mode=0o700)
        self._gpg("--quick-gen-key", "archive@localhost", "ed25519", "sign", "never")
        self._gpg("--output", str(self.keyring), "--export")

    def publish(self, version: str) -> None:
        """Offer the package in this version, which its Makefile tells, and no other."""
        made = self.folder.parent / "package"
        shutil.rmtree(made, ignore_errors=True)
        (made / "DEBIAN").mkdir(parents=True)
        about = (
            f"Package: {NAME}\nVersion: {version}\nArchitecture: all\nMaintainer: kgym\n"
            "Description: for tests\n"
        )
        (made / "DEBIAN" / "control").write_text(about)
        tar = made / "usr" / "src" / f"{NAME}.tar.gz"
        tar.parent.mkdir(parents=True)
        with tarfile.open(tar, "w:gz") as archive:
            member = tarfile.TarInfo("linux/Makefile")
            member.size = len(version)
            archive.addfile(member, io.BytesIO(version.encode()))
        deb = self.folder / "pool" / f"{NAME}_{version}_all.deb"
        deb.parent.mkdir(parents=True, exist_ok=True)
        argv = ["dpkg-deb", "--root-owner-group", "-b", str(made), str(deb)]
        subprocess.run(argv, check=True, timeout=60, capture_output=True)
        content = deb.read_bytes()
        index = (
            f"{about}Filename: pool/{deb.name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
        )
        place = self.folder / "dists" / self.suite
        for architecture in ("all", "amd64", "arm64"):
            packages = place / f"main/binary-{architecture}/Packages"
            packages.parent.mkdir(parents=True, exist_ok=True)
            packages.write_text(index)
        digest = hashlib.sha256(index.encode()).hexdigest()
        release = place / "Release"
        release.write_text(
            f"Suite: {self.suite}\nCodename: {self.suite}\nArchitectures: all amd64 arm64\n"
            "Components: main\nSHA256:\n"
            + "".join(
                f" {digest} {len(index)} main/binary-{architecture}/Packages\n"
                for architecture in ("all", "amd64", "arm64")
            )
        )
        (place / "InRelease").unlink(missing_ok=True)
        self._gpg("--output", str(place / "InRelease"), "--clearsign", str(release))

    def retire(self) -> None:
        """Have the suite no more."""
        shutil.rmtree(self.folder / "dists" / self.suite)

    def _gpg(self, *words: str) -> None:
        argv = ["gpg", "--homedir", str(self._keys), "--batch", "--passphrase", "", *words]
        subprocess.run(argv, check=True, timeout=60, capture_output=True)
        # It would stay, with its folder gone.
        stop = ["gpgconf", "--homedir", str(self._keys), "--kill", "all"]
        subprocess.run(stop, check=True, timeout=60, capture_output=True)
