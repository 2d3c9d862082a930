"""Artifact storage in a bucket of Google Cloud Storage.

Google's library takes two seconds to import: import this package only to use a bucket.
"""
