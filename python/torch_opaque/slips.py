"""What a word was meant to be."""


def meant(word, words, cutoff: float = 0.6) -> str:
    """The words that it resembles, as "; did you mean X?"; "" if there are none."""
    import difflib  # the package is imported by programs that make no mistakes, too

    near = difflib.get_close_matches(str(word), list(words), n=2, cutoff=cutoff)
    return f"; did you mean {' or '.join(near)}?" if near else ""
