"""The agent service, wherever it listens just now."""

from collections.abc import Callable

from kgym.client.agent_client import AgentClient
from kgym.errors import InfrastructureError

# Returns the URL of the agent service; None while there is none.
FindAgent = Callable[[], str | None]


class AgentLink:
    """Asks the agent with the monitor's own token, for what all pages show alike."""

    def __init__(self, find: FindAgent, token: str | None) -> None:
        self._find, self._token = find, token
        self._clients: dict[str, AgentClient] = {}

    @property
    def url(self) -> str | None:
        """Where the agent listens; None: there is none."""
        return self._find()

    def client(self) -> AgentClient:
        """Return the client of the agent; raise InfrastructureError `no_agent` without one."""
        url = self._known_url()
        if url not in self._clients:
            self._clients[url] = AgentClient(url, self._token)
        return self._clients[url]

    def of_reader(self, token: str) -> AgentClient:
        """Return a client with a reader's own token, for what they change; empty: without one."""
        return AgentClient(self._known_url(), token or None)

    def _known_url(self) -> str:
        url = self._find()
        if url is None:
            message = "no agent service is known; start one with `kgym agent`"
            raise InfrastructureError("no_agent", message)
        return url

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()
