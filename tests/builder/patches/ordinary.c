/* int comment(void) { } */
#include <linux/kernel.h>
#define MACRO(x) do { \
	int y = (x); } while (0)

static const struct ops ops = { .open = first, };
struct pair { int a; } __packed;
static int table[] = { 1, 2 };

static inline int first(const char *text)
{
	if (text[0] == '}' || !strcmp(text, "{"))
		return 1;
	return 0;
}
EXPORT_SYMBOL(first);
