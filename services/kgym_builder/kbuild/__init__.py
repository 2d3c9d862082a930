"""The kernel's own build system: how it is driven, and what it wrote down."""
