"""Agents: which one a command uses, its runs, and its tools over MCP."""
