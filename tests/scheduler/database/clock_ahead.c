#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

/* What the program that loads this takes for the time of day is a minute ahead. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += 60;
    return failed;
}
