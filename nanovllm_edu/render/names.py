"""How requests, blocks and hashes are called wherever a person reads them."""
from __future__ import annotations

NO_HASH = -1


def seq_name(seq_id: int) -> str:
    """The letters of a request: 0 is A, 25 is Z, 26 is AA, as columns of a spreadsheet are named."""
    if seq_id < 0:
        raise ValueError(f"seq_id={seq_id}: requests are counted from 0")
    letters = ""
    number = seq_id + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def block_name(block_id: int) -> str:
    return f"#{block_id}"


def full_hash(hash: int | str) -> str:
    """16 hex digits, "" for no hash. A JavaScript number can't hold 64 bits, so hashes travel as text."""
    if isinstance(hash, str):
        return hash
    return "" if hash == NO_HASH else f"{hash:016x}"


def short_hash(hash: int | str) -> str:
    """The first four hex digits, enough to tell blocks apart on a screen."""
    digits = full_hash(hash)
    return f"{digits[:4]}…" if digits else "−1"
