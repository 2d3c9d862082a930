"""The agent's REST interface, /v1/runs."""
