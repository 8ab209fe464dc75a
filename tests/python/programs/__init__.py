"""Random programs: text that a user could have written, run on the device and on the CPU.

prelude.py      what every program begins with: seeded values, reads, expected errors
program.py      a program is runnable Python text; how it runs and what it leaves
writer.py       writes a program statement by statement, running it as it goes
oracle.py       what may differ from the CPU, and how much
shrink.py       the smallest program that still fails
nets.py ...     the kinds: each has write(seed) -> Program and check(program) -> str
__main__.py     sweeps: ./dev python -m programs nets 0:2000  (in tests/python)
"""
