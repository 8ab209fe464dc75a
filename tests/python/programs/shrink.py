"""The smallest program that still fails.

Each step proposes programs with less in them; one that still fails is taken, and the search begins
again: blocks and statements leave with all that needs them, blocks are unwrapped, right-hand sides become other variables or fresh values,
extents become small.
"""

import re

_ASSIGNED = re.compile(r"^(\w+) = (.*)$")


def shrink(program, fails, limit: int = 600):
    """The smallest program found within `limit` trials for which `fails(program)` is true."""
    trials = 0
    seen = {program.text}
    progress = True
    while progress:
        progress = False
        for candidate in _candidates(program):
            if candidate.text in seen or not _compiles(candidate.text):
                continue
            seen.add(candidate.text)
            trials += 1
            if trials > limit:
                return program
            if fails(candidate):
                program, progress = candidate, True
                break
    return program


def _candidates(program):
    lines = list(program.lines)
    for size in (len(lines) // 2, len(lines) // 4, len(lines) // 8):
        if size > 1:
            for start in reversed(range(0, len(lines), size)):
                yield program.without(lines[:start] + lines[start + size :])
    for i in reversed(range(len(lines))):
        yield program.without(_without(lines, i))
    for i, line in enumerate(lines):
        if line.endswith(":"):
            end = _block_end(lines, i)
            body = [text[4:] for text in lines[i + 1 : end]]
            yield program.without(lines[:i] + body + lines[end:])
        yield from (
            program.without(lines[:i] + [new] + lines[i + 1 :]) for new in _simpler(lines, i)
        )
    for number in sorted(
        {int(n) for line in lines for n in re.findall(r"\b\d+\b", line)}, reverse=True
    ):
        for small in (1, 2, 3):
            if small < number:
                yield program.without(re.sub(rf"\b{number}\b", str(small), line) for line in lines)


def _without(lines: list, i: int) -> list:
    """Without line i, its block, and every later line that uses what they assign."""
    end = _block_end(lines, i)
    gone = {m[1] for line in lines[i:end] if (m := _ASSIGNED.match(line.strip()))}
    kept = lines[:i]
    for line in lines[end:]:
        if gone & set(re.findall(r"\w+", line)) and not line.endswith(":"):
            if match := _ASSIGNED.match(line.strip()):
                gone.add(match[1])
        else:
            kept.append(line)
    return kept


def _block_end(lines: list, i: int) -> int:
    indent = _indent(lines[i])
    end = i + 1
    while end < len(lines) and _indent(lines[end]) > indent:
        end += 1
    return end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _simpler(lines: list, i: int):
    """Line i with an operand in place of an expression."""
    match = _ASSIGNED.match(lines[i].strip())
    if not match:
        return
    space = " " * _indent(lines[i])
    name, value = match.groups()
    earlier = {m[1] for line in lines[:i] if (m := _ASSIGNED.match(line.strip()))}
    used = [x for x in dict.fromkeys(re.findall(r"\w+", value)) if x in earlier]
    if value not in used:
        yield from (f"{space}{name} = {x}" for x in used)
    for depth in range(value.count("(")):
        inner = _argument(value, depth)
        if inner:
            start, end, argument = inner
            yield f"{space}{name} = {value[:start]}{argument}{value[end:]}"


def _argument(text: str, number: int):
    """(start, end, argument) of the number-th call in `text`: what it spans, and its first argument."""
    at = [m.start() for m in re.finditer(r"\(", text)][number]
    start = at
    while start and (text[start - 1].isalnum() or text[start - 1] in "._"):
        start -= 1
    depth, first = 0, None
    for end in range(at, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if first is None and (depth == 0 or (depth == 1 and text[end] == ",")):
            first = end
        if depth == 0:
            return start, end + 1, text[at + 1 : first]
    return None


def _compiles(text: str) -> bool:
    try:
        compile(text, "<program>", "exec")
    except SyntaxError:
        return False
    return bool(text.strip())
