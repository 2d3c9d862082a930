int extra = 1;
