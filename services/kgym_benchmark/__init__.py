"""The benchmark service: fetches and validates bugs, runs agents on them, judges patches."""
