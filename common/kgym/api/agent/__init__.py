"""The bodies of the agent's REST interface: runs, and what is in them."""
