"""A client of the scheduler."""

from kgym.client.client import AsyncClient, Client
from kgym.client.protocol import ApiError, Refused, ServerFailed

__all__ = ["ApiError", "AsyncClient", "Client", "Refused", "ServerFailed"]
