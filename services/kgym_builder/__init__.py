"""The builder: a service that builds kernels and checks patches."""
