"""Artifact storage in a bucket of Google Cloud Storage.

Google's library takes two seconds to import: only who uses a bucket imports from here.
"""
