"""Connections to Cloud Storage, with the default credentials of Google's libraries."""

import os
from dataclasses import dataclass
from http import HTTPStatus

import google.auth
import requests
import requests.adapters
from google.auth.credentials import AnonymousCredentials, Credentials, Signing
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage

from kgym.errors import UserError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# The address of an emulator, as Google's libraries read it.
_EMULATOR = "STORAGE_EMULATOR_HOST"


@dataclass(frozen=True, slots=True)
class Connection:
    """A client of Google's library."""

    client: storage.Client
    signs: bool
    """Whether the credentials contain a key that can sign URLs."""

    @property
    def url(self) -> str:
        """The store's base URL."""
        return str(self.client.api_endpoint)

    def close(self) -> None:
        """Close its connections."""
        self.client.close()


def connect(at_once: int, endpoint: str | None = None) -> Connection:
    """Return a connection for `at_once` concurrent requests; raise UserError `no_credentials`.

    `endpoint` is the address of an emulator.
    """
    # Otherwise the library starts a thread that reads the bucket's properties for traces, which
    # needs a permission that workers do not have.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    emulator = endpoint or os.environ.get(_EMULATOR)
    credentials: Credentials
    if emulator and "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ:
        credentials = AnonymousCredentials()
    else:
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        except DefaultCredentialsError as error:
            raise UserError(
                "no_credentials",
                "this machine has no credentials for Google Cloud: it is not a VM of Google's, "
                "and GOOGLE_APPLICATION_CREDENTIALS names no key file of a service account",
            ) from error
    session = AuthorizedSession(credentials)
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=at_once)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # A proxy set in the environment cannot reach an emulator on this machine's loopback.
    session.trust_env = not emulator
    where = {"client_options": {"api_endpoint": emulator}} if endpoint else {}
    session.hooks["response"].append(_read_error)
    client = storage.Client(project=None, credentials=credentials, _http=session, **where)
    return Connection(client, isinstance(credentials, Signing))


def _read_error(answer: requests.Response, *_: object, **__: object) -> None:
    # The library does not read the body of a refused download, which leaves the socket open.
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        answer.content  # noqa: B018
