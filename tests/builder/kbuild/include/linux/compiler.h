#pragma once
#include <stdbool.h>
#include <stddef.h>
#define noinline __attribute__((noinline))
#define __maybe_unused __attribute__((unused))
#define READ_ONCE(x) (*(volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
#define OPTIMIZER_HIDE_VAR(x) __asm__("" : "+r"(x))
