#pragma once
#include <string.h>
#include <stdio.h>
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define scnprintf snprintf
#define sysfs_streq(one, other) (strcmp(one, other) == 0)
