"""A client of the scheduler."""

from kgym.client.async_client import AsyncClient
from kgym.client.client import Client
from kgym.client.protocol import ApiError, Refused, ServerFailed

__all__ = ["ApiError", "AsyncClient", "Client", "Refused", "ServerFailed"]
