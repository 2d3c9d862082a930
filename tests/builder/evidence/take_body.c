
	struct item *item = find(table, id);
	int ret = 0;

	WARN_ON_ONCE(!table);
	if (!item || item->size > MAX_SIZE)
		return -EINVAL;
	pr_debug("copying %d\n", id);
	switch (item->kind) {
	case KIND_A:
		ret = copy(item);
		break;
	case KIND_B:
		ret = share(item);
		break;
	default:
		ret = -EIO;
	}
	put(item);
	return ret;
