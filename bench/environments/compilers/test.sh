#!/bin/sh
# Builds and runs the program with one compiler, and has the other check it.
set -e
g++ -O1 -std=c++17 -pthread words.cpp -o words && ./words
clang++ -fsyntax-only -std=c++17 words.cpp
