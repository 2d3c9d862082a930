"""kGymSuite builder service."""
