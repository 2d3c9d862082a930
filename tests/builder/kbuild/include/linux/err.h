#pragma once
#include <errno.h>
#define PTR_ERR_OR_ZERO(pointer) ((pointer) == NULL)
