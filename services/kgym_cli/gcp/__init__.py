"""Deployments on Google Cloud, real and emulated."""
