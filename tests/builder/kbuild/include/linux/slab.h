#pragma once
#include <stdlib.h>
#define GFP_KERNEL 0
#define kmalloc(size, flags) malloc(size)
#define kfree(memory) free(memory)
