"""The connection to the store, with the credentials that Google's libraries find."""

import os
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

import google.auth
import requests
import requests.adapters
from google.auth.credentials import AnonymousCredentials, Credentials, Signing
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage

from kgym.errors import UserError

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# The address of another server that speaks as the store does: what Google's libraries go by.
_EMULATOR = "STORAGE_EMULATOR_HOST"


@dataclass(frozen=True, slots=True)
class Connection:
    """A client of Google's library."""

    client: storage.Client
    signs: bool
    """Whether the credentials have a key, with which URLs can be signed."""

    @property
    def url(self) -> str:
        """Where the store is."""
        return str(self.client.api_endpoint)

    def close(self) -> None:
        """Close its connections."""
        self.client.close()


def connect(at_once: int, endpoint: str | None = None) -> Connection:
    """Return a connection for so many requests at once; raise UserError `no_credentials`.

    `endpoint` is another server that speaks as the store does.
    """
    # For traces that nobody collects, the library would look at the bucket itself, from a thread
    # that it starts: which takes a right that a worker need not have.
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
                "this machine has no credentials of Google Cloud: it is none of theirs, "
                "and GOOGLE_APPLICATION_CREDENTIALS names no key file of a service account",
            ) from error
    session = AuthorizedSession(credentials)
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=at_once)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # A proxy of the environment cannot reach this machine's own loopback.
    session.trust_env = not (emulator and _is_loopback(emulator))
    where = {"client_options": {"api_endpoint": emulator}} if endpoint else {}
    session.hooks["response"].append(_read_error)
    client = storage.Client(project=None, credentials=credentials, _http=session, **where)
    return Connection(client, isinstance(credentials, Signing))


def _read_error(answer: requests.Response, *_: object, **__: object) -> None:
    # The library leaves the body of a download that is refused unread, and so its socket open.
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        answer.content  # noqa: B018


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
