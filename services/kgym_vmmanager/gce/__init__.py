"""VMs on Google Compute Engine: a provider beside QEMU. Its library is imported here alone."""
