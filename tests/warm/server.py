"""A process that has imported torch and forks for each program that tests/warm/python asks for.

A request is the length of a JSON text, with the three streams beside it, and that text; the answer is the exit status, 8 bytes. Who
asked and goes away has its program ended. What starts further ones as sys.executable does so from here if WARM_EXECUTABLE is
tests/warm/python. Seconds of processors are added to the file WARM_USAGE of the program's environment, because the program is no child
of who asked.
"""

import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from types import ModuleType

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import pytest  # noqa: F401, E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  2 s, which any program with an optimizer imports

del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]


def received(connection) -> tuple:
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, body = int.from_bytes(head, "little"), b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            return None, streams
        body += part
    return json.loads(body), streams


def keep(connection, child: int, usage: str | None) -> None:
    """Waits for the program, or for nobody to want it any more."""
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if usage:
        with open(usage, "a") as file:
            file.write(f"{used.ru_utime + used.ru_stime}\n")
    code = os.waitstatus_to_exitcode(status)
    connection.sendall(code.to_bytes(8, "little", signed=True))


def wanted(address: str) -> dict:
    """Forks for each request; returns in each program."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        gc.freeze()  # programs neither visit nor copy what is here
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams = received(connection)
    if request is None:
        os._exit(1)
    child = os.fork()
    if child:
        for fd in (0, 1, 2, *streams):
            os.close(fd)
        keep(connection, child, request["environment"].get("WARM_USAGE"))
        os._exit(0)
    os.setsid()
    connection.close()
    for to, fd in enumerate(streams):
        os.dup2(fd, to)
        os.close(fd)
    return request


def stream(fd: int, unbuffered: bool) -> io.TextIOWrapper:
    line = fd == 2 or os.isatty(fd)
    errors = "backslashreplace" if fd == 2 else "strict"
    raw = open(fd, "wb", 0) if unbuffered else open(fd, "wb")  # noqa: SIM115
    return io.TextIOWrapper(raw, "utf-8", errors, None, line, unbuffered)


def settle(request: dict) -> None:
    """The state of an interpreter that has just started."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = stream(1, unbuffered)
    sys.stderr = sys.__stderr__ = stream(2, unbuffered)
    sys.orig_argv = [sys.executable, *request["arguments"]]
    sys.executable = os.environ.get("WARM_EXECUTABLE", sys.executable)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        torch._import_device_backends()


def run(arguments: list) -> None:
    kind, rest = arguments[0], arguments[1:]
    if kind == "-m":
        sys.argv, sys.path[0] = [rest[0], *rest[1:]], os.getcwd()
        return runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        return exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(kind))
    return runpy.run_path(kind, run_name="__main__")


def main() -> None:
    settle(request := wanted(sys.argv[1]))
    try:
        run(request["arguments"])
    except Exception as error:
        # The program's frames, as the interpreter prints them.
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace) if trace else traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
