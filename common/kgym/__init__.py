"""What every kGymSuite service shares."""
