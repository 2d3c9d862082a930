#pragma once
struct completion { int n; };
