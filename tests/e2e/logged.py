"""Run a module as a program whose output goes to a file: `logged.py FILE MODULE`. For a launcher's children,
which otherwise write where the launcher does."""

import os
import runpy
import sys

if __name__ == "__main__":
    path, module = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
