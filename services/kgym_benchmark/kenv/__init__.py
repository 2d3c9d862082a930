"""Environments in which agents work on a bug: Live-kBench's protocol, in our sandbox."""
