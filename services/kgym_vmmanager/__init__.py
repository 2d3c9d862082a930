"""kGymSuite vmmanager service."""
