"""A server that answers as a project of Google Cloud does, on loopback: for tests, and trials.

Networks, firewalls, addresses, routers, hosts with disks and labels, operations, service accounts;
and buckets, by the server of `cloud_storage`, whose faults it shows as well.
"""
