"""As run.c, with NumPy and ctypes alone: run_numpy.py FOLDER/tagger.so"""

import ctypes
import sys

import numpy as np

library = ctypes.CDLL(sys.argv[1])
library.tagger_error.restype = ctypes.c_char_p
library.tagger_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
library.tagger_close.argtypes = [ctypes.c_void_p]


def check(code):
    if code:
        raise RuntimeError(library.tagger_error().decode())


model = ctypes.c_void_p()
check(library.tagger_open(None, 1, ctypes.byref(model)))
for length in (5, 24):
    tokens = np.arange(length, dtype=np.int64) * 7 % 100
    tags = np.empty(length, dtype=np.int64)
    check(library.tagger_run(model, length, tokens.ctypes.data, tags.ctypes.data))
    print(*tags)
library.tagger_close(model)
