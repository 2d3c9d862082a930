"""A secret for the playbook: of Google's Secret Manager, or of a file of this machine.

lookup('kgym_secret', 'projects/PROJECT/secrets/NAME')     its latest version, with your credentials
lookup('kgym_secret', '~/.config/kgym/owner-token')        a file that nobody else can read
"""

import base64
import os
import re
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

MOST_BYTES = 1 << 16
_SECRET = re.compile(r"projects/[a-z0-9:.-]+/secrets/[A-Za-z0-9_-]{1,255}")
_SERVICE = "https://secretmanager.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class LookupModule(LookupBase):
    """What Ansible calls."""

    def run(self, terms, variables=None, **kwargs):
        """Return the text of each secret, without white space around it."""
        return [_of_service(one) if _SECRET.fullmatch(one) else _of_file(one) for one in terms]


def _of_file(name: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise AnsibleError(f"{name}: others can read this secret; chmod 600 {name}")
            return _text(name, file.read(MOST_BYTES + 1))
    except OSError as error:
        raise AnsibleError(f"{name}: {error.strerror}") from error


def _of_service(name: str) -> str:
    # Only who keeps secrets there needs Google's library.
    import google.auth  # noqa: PLC0415
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415

    emulated = os.environ.get("SECRET_MANAGER_EMULATOR_HOST")
    try:
        credentials = AnonymousCredentials() if emulated else google.auth.default([_SCOPE])[0]
        url = f"{emulated or _SERVICE}/v1/{name}/versions/latest:access"
        session = AuthorizedSession(credentials)
        session.trust_env = not emulated  # a proxy cannot reach this machine's loopback
        answer = session.get(url, timeout=30)
        answer.raise_for_status()
        return _text(name, base64.b64decode(answer.json()["payload"]["data"]))
    except google.auth.exceptions.GoogleAuthError as error:
        raise AnsibleError(f"{name}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnsibleError(f"{name}: {error}") from error


def _text(name: str, secret: bytes) -> str:
    text = secret.decode(errors="replace").strip()
    if not text or len(secret) > MOST_BYTES or not text.isprintable():
        raise AnsibleError(f"{name}: a secret is one line of text")
    return text
