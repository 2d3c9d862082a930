typedef unsigned long size_t;
#define SHADOW 0xdffffc0000000000UL
struct item { long a, b, c, d; struct item *next; };
void freed(struct item *item);
void *__kmalloc(size_t size, unsigned int flags);
unsigned long _copy_to_user(void *to, const void *from, unsigned long count);
unsigned long _copy_from_user(void *to, const void *from, unsigned long count);
extern int debug_locks;
void console_lock(void);

static inline void writeb(unsigned char value, void *to)
{
	__asm__ volatile("movb %0,%1" : : "q"(value), "m"(*(volatile unsigned char *)to) : "memory");
}

static inline void copy(void *to, const void *from, size_t count)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
}

ATTRIBUTE long sum(struct item *item)
{
	return item->a + item->b + item->c + item->d + item->next->a;
}

static long start(struct item *item) { return item->a + item->b; }
long twice(struct item *item) { freed(item); return start(item) + start(item->next); }

struct item *make(size_t count, const char *user)
{
	struct item *item = __kmalloc(sizeof(*item), 0);
	struct item *many = __kmalloc(sizeof(*item) * count, 0);
	if (!item || !many)
		return 0;
	for (size_t i = 0; i < count; i++)
		many[i].a = i;
	if (_copy_from_user(&item->b, user, 8))
		return 0;
	item->next = many;
	item->d = 1;
	return item;
}

long tell(struct item *item, char *user)
{
	long result = item->a;
	switch (item->b) {
	case 0: result += item->c; break;
	case 1: result -= item->d; break;
	case 2: result ^= item->next->a; break;
	case 3: result |= item->next->b; break;
	case 4: freed(item); break;
	case 5: result = item->next->next->a; break;
	}
	if (_copy_to_user(user, &result, 8))
		return -14;
	return result;
}

void loud(void) { console_lock(); }
