"""CrashFixer: searches for the fix of a kernel crash, by the scheduler's REST interface alone."""
