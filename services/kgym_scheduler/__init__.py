"""The scheduler: a service that takes jobs and hands their steps to workers."""
