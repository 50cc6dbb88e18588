"""The SDK for callers without an event loop: the same classes, whose methods wait.

Everything here but `portal` is generated from the asynchronous classes by
`libs/sdk/generate_blocking.py`.
"""

from .client import Client
from .command import Command
from .files import Files
from .functions import Function, FunctionMaker
from .job import Job
from .sandbox import Sandbox

__all__ = ["Client", "Command", "Files", "Function", "FunctionMaker", "Job", "Sandbox"]
