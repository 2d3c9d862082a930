"""SuiteCache: compiled kernel trees, made once and used by all later builds."""
