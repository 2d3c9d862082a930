
struct item { long a, b, c, d; struct item *next; };
void freed(struct item *item);
ATTRIBUTE long sum(struct item *item)
{
	return item->a + item->b + item->c + item->d + item->next->a;
}
static long start(struct item *item) { return item->a + item->b; }
long twice(struct item *item) { freed(item); return start(item) + start(item->next); }
