#pragma once
struct task_struct { int n; };
