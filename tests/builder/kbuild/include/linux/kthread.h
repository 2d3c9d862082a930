#pragma once
#define kthread_run(function, data, name) ((void)(function), (void *)data)
