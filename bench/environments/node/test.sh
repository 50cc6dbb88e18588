#!/bin/sh
# Type-checks and compiles, and runs the tests.
set -e
./node_modules/.bin/tsc
node --test out/
