#define FROB_MODES 4

static int frob_set(struct frob *frob, int index, u8 mode)
{
	if (index >= FROB_MODES)
		return -EINVAL;
	frob->modes[index] = mode;
	return 0;
}
EXPORT_SYMBOL(frob_set);

static int frob_get(struct frob *frob, int index)
{
	return frob->modes[index];
}
