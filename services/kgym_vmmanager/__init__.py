"""The VM manager: a service that runs reproducers on kernels in VMs, and reports the outcome."""
