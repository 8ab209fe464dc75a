"""What the processor is and what it can do: the roofline of a row that states its operations and bytes."""

import concurrent.futures
import ctypes
import functools
import os
import platform
import re
import resource
import shutil
import subprocess
import time

import torch

# Variables that make every engine run as on a CPU without AVX-512.
CPUS = {
    "avx512": {},
    "avx2": {
        "OPAQUE_CPU": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
}
_MARCH = {"avx512": "x86-64-v4", "avx2": "x86-64-v3"}
_LARGEST = 1 << 28  # bytes of arrays: in no cache


def cpu_info():
    with open("/proc/cpuinfo") as file:
        return file.read()


def cpu_name():
    match = re.search(r"^model name\s*: (.*)$", cpu_info(), re.M)
    return match[1].strip() if match else platform.machine()


def has_avx512():
    flags = re.search(r"^flags\s*: (.*)$", cpu_info(), re.M)[1].split()
    return {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)


def environment(cpu, threads):
    """Of a process that runs as on `cpu` with so many threads."""
    of_cpu = {name for values in CPUS.values() for name in values}
    flags = ["--xla_cpu_max_isa=AVX2"] if cpu == "avx2" else []
    if threads == 1:
        flags += ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"]
    return {
        **{name: value for name, value in os.environ.items() if name not in of_cpu},
        **CPUS[cpu],
        # First calls compile, as the peers' do.
        "OPAQUE_CACHE": os.environ.get("OPAQUE_CACHE", "off"),
        "XLA_FLAGS": " ".join(flags),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }


def processor_seconds():
    """That all threads of this process and children that ended had a processor, which is time in which others did not have it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def clock(threads):
    """A function that gives seconds. Of one thread, on its one processor, what other processes take does not count."""
    return processor_seconds if threads == 1 else time.perf_counter


def compile_peak(cpu, folder):
    """The path of peak.c's library, or None if there is no C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        return None
    library = os.path.join(folder, f"peak-{cpu}.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peak.c")
    flags = ["-O3", f"-march={_MARCH[cpu]}", "-ffp-contract=fast", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, source, "-o", library], check=True)
    return library


class Roofline:
    """What the threads of this process can do together, measured when it is asked for."""

    def __init__(self, library, threads):
        self.library, self.threads, self.clock = ctypes.CDLL(library), threads, clock(threads)
        self.library.multiply_add.restype = ctypes.c_double
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)

    def _best(self, work, amount, seconds):
        """The most of `amount` for a thread's work(i) that was done in a second."""
        best, end = 0.0, time.perf_counter() + seconds
        while best == 0.0 or time.perf_counter() < end:
            start = self.clock()
            list(self.pool.map(work, range(self.threads)))
            best = max(best, amount * self.threads / (self.clock() - start))
        return best

    def flops(self):
        """Operations in a second."""
        out, rounds = [ctypes.c_float(0.5) for _ in range(self.threads)], 1_000_000

        def work(i):
            return self.library.multiply_add(ctypes.c_long(rounds), ctypes.byref(out[i]))

        return self._best(work, work(0), 0.1)

    def bandwidth(self, working_set):
        """Bytes read and written in a second, by additions of arrays that are together as large as `working_set`."""
        count = max(int(min(working_set, _LARGEST)) // 12 // self.threads // 64 * 64, 64)
        arrays = [[torch.ones(count) for _ in range(3)] for _ in range(self.threads)]
        rounds = max(1, (1 << 20) // count)

        def work(i, add):
            pointers = [ctypes.c_void_p(array.data_ptr()) for array in arrays[i]]
            add(ctypes.c_size_t(count), ctypes.c_long(rounds), *pointers)

        library = self.library
        ways = library.add_arrays, library.add_arrays_around, library.add_in_place
        return max(
            self._best(functools.partial(work, add=add), 12.0 * count * rounds, 0.1) for add in ways
        )

    def seconds(self, row):
        """The least that a row can take, or None if it does not say what it does."""
        times = [row.flops / self.flops()] if row.flops else []
        times += [row.bytes / self.bandwidth(row.working_set or row.bytes)] if row.bytes else []
        return max(times, default=None)
