"""A line that says what is being done, on a terminal; nothing elsewhere."""

import sys
from contextlib import contextmanager


@contextmanager
def progress():
    """Gives a function that shows a text. With rich, if it is installed; it draws when told to and has no thread, which would be in
    what is timed."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        from rich import console
        from rich import progress as rich
    except ImportError:
        yield from _plain()
        return
    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.TimeElapsedColumn(),
    )
    where = console.Console(stderr=True)
    with rich.Progress(*columns, console=where, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text, refresh=True)


def _plain():
    width = 0

    def say(text):
        nonlocal width
        print(f"\r{text.ljust(width)}", end="", file=sys.stderr, flush=True)
        width = len(text)

    yield say
    print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)
