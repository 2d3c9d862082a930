"""The VM manager: a service that crashes kernels in VMs, and says what happened."""
