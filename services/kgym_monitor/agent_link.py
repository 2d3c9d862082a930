"""Connection to the agent service, whose URL may change."""

from collections.abc import Callable

from kgym.client.agent_client import AgentClient
from kgym.errors import InfrastructureError

# Returns the current URL of the agent service; None if there is none.
FindAgent = Callable[[], str | None]


class AgentLink:
    """Clients of the agent service, by default with the monitor's own token."""

    def __init__(self, find: FindAgent, token: str | None) -> None:
        self._find, self._token = find, token
        self._clients: dict[str, AgentClient] = {}

    @property
    def url(self) -> str | None:
        """URL of the agent; None if there is none."""
        return self._find()

    def client(self) -> AgentClient:
        """Return the agent's client; raise InfrastructureError `no_agent`."""
        url = self._known_url()
        if url not in self._clients:
            self._clients[url] = AgentClient(url, self._token)
        return self._clients[url]

    def of_reader(self, token: str) -> AgentClient:
        """Return a client with a reader's token, for changes; an empty token sends none."""
        return AgentClient(self._known_url(), token or None)

    def _known_url(self) -> str:
        url = self._find()
        if url is None:
            message = "no agent service is running: start one with `kgym agent`"
            raise InfrastructureError("no_agent", message)
        return url

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()
