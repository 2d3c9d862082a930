"""A platform on many hosts: what a deployment is, when hosts come and go, how they are set up."""
