#pragma once
#define WARN(condition, ...) ((void)(condition))
static inline void panic(const char *format, ...) { }
