#!/bin/sh
# Builds and runs the program with both compilers.
set -e
g++ -O2 -std=c++17 -pthread words.cpp -o words && ./words
clang++ -O1 -std=c++17 -pthread words.cpp -o words-clang && ./words-clang
