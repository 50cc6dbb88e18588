"""Programs that run the languages other than Python, and the files they want."""

from __future__ import annotations

import shutil

_COMPILERS = {"c": ("gcc", "cc", "clang"), "cpp": ("g++", "c++", "clang++")}
_RUNNERS = {"bash": ("bash",), "javascript": ("node", "nodejs")}
_FILES = {
    "python": "main.py",
    "bash": "main.sh",
    "javascript": "main.js",
    "c": "main.c",
    "cpp": "main.cpp",
}
_FLAGS = {"c": ["-O1", "-std=gnu17"], "cpp": ["-O1", "-std=gnu++17"]}
_MIB = 1024 * 1024


def find_all() -> dict[str, str]:
    """Return the program of each language that is here."""
    found: dict[str, str] = {}
    for language, names in (*_COMPILERS.items(), *_RUNNERS.items()):
        for name in names:
            path = shutil.which(name)
            if path:
                found[language] = path
                break
    return found


def is_compiled(language: str) -> bool:
    """Return whether a language takes two steps."""
    return language in _COMPILERS


def file_of(language: str) -> str:
    """Return the name of the file that holds the code."""
    return _FILES[language]


def compile_command(language: str, program: str) -> list[str]:
    """Return the arguments that make `main` of the code."""
    return [program, *_FLAGS[language], "-o", "main", _FILES[language], "-lm"]


def run_command(language: str, program: str, memory_bytes: int) -> list[str]:
    """Return the arguments that run the code."""
    if language in _COMPILERS:
        return ["./main"]
    if language == "javascript":
        heap = max(16, memory_bytes * 3 // 4 // _MIB)
        return [program, f"--max-old-space-size={heap}", _FILES[language]]
    return [program, _FILES[language]]


def maps_much(language: str) -> bool:
    """Return whether it reserves far more address space than it uses."""
    return language == "javascript"
