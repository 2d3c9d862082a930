#!/bin/sh
cd /linux && git apply /solution/fix.patch
