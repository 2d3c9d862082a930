#pragma once
struct kernel_param;
struct kernel_param_ops {
    int (*set)(const char *value, const struct kernel_param *param);
    int (*get)(char *buffer, const struct kernel_param *param);
};
#define module_param_cb(name, ops, arg, mode) const void *const kgym_##name = ops
