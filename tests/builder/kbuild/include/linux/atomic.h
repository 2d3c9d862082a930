#pragma once
typedef struct { int n; } atomic_t;
#define atomic_inc(a) ((a)->n++)
#define atomic_read(a) ((a)->n)
