/* What programs include. */
#ifndef _UAPI_LINUX_FORK_H
#define _UAPI_LINUX_FORK_H
#include <linux/compiler.h>

#define fork_header "made"
int fork_two(const char __user *name);
#endif
