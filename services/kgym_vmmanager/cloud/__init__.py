"""What the provider of any cloud uses: labels, a sweeper, zones, a server of kernels."""
