"""The disks that guests start from."""
