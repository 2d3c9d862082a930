static inline __attribute__((always_inline)) void my_inlined(int *p)
{
    *(volatile int *)p = 1;
}

__attribute__((noinline)) void my_crash(int *p)
{
    my_inlined(p);
}

__attribute__((noinline)) void after(void) {}
