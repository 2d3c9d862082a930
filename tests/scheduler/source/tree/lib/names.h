struct point {
	int x;
};

enum colour {
	RED_ONE,
	GREEN_ONE = 2,
};

typedef struct {
	int a;
} pair_t;

#define TWICE(x) \
	((x) * 2)

static inline int one_line(void) { return TWICE(1); }
