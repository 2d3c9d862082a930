// SPDX-License-Identifier: GPL-2.0
#include <linux/list.h>

#define LIMIT 16
struct frob { int n; };

/* Adds one. */
static __always_inline int frob_add(struct frob __user *frob, int n)
{
	struct frob *one;

	list_for_each_entry(one, &frobs, node) {
		if (one->n == n)
			return -EEXIST;
	}
	return 0;
}
EXPORT_SYMBOL_GPL(frob_add);

SYSCALL_DEFINE2(frob, int, id, int __user *, out)
{
	return put_user(id, out);
}

#ifdef CONFIG_FROB
static int frob_init(void)
{
	return 1;
}
#else
static int frob_init(void)
{
	return 0;
}
#endif

DEFINE_FROB(frob_made)
{
	return 7;
}

static int frob_mixed(int n)
{
#ifdef CONFIG_FROB
	if (n) {
#else
	if (!n) {
#endif
		return 1;
	}
	return 0;
}

static int frob_last(void) /* Zoë */
{
	return 3;
}
