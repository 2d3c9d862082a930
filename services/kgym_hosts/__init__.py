"""A platform on many hosts: deployments, their resources in the cloud, automatic scaling."""
