#!/bin/sh
# Type-checks and compiles, runs the tests, and bundles.
set -e
npx --no-install tsc
node --test out/
npx --no-install webpack --mode production --target node18 --entry ./out/model.js --output-path bundle
