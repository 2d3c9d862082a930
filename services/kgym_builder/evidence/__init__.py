"""Evidence from source, config and objects: can a patched kernel still report the bug?"""
