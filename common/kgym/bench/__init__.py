"""The benchmark: datasets of bugs, agents' attempts on them, and figures of the attempts."""
