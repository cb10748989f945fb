"""Where tokens come from: Python's standard library, text, or a token file; bytes of a .bin file are mapped, never read whole.

    "stdlib"           the source text of the running interpreter's library, bytes as tokens
    file or folder     text, bytes as tokens; the files of a folder in the order of their names, joined with a newline
    file.bin           token ids, one array:
        nanoGPT        raw uint16; raw uint32 where the vocabulary is larger than 65536
        llm.c          256 int32 of header (magic, version, number of tokens, zeros), then uint16 or uint32

The headers are those of llm.c, dev/data/data_common.py: magic 20240520 version 1 for uint16 (GPT-2) and magic 20240801
version 7 for uint32 (Llama 3); early files of the second kind carry version 1. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcpar.errors import PlanError

HEADER_BYTES = 256 * 4
HEADERS: dict[int, tuple[str, tuple[int, ...]]] = {20240520: ("<u2", (1,)), 20240801: ("<u4", (1, 7))}  # magic -> type, versions
BLOCK = 1 << 22  # tokens looked at together
END_BYTES = 1 << 20  # of a token file that enter its fingerprint, at each end
NO_SOURCE = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}  # folders of the library left out


@dataclass(frozen=True, eq=False)
class Source:
    """Tokens by position: `tokens` (N,), unsigned and read-only; `mapped` where they are a token file on disk."""

    name: str
    tokens: np.ndarray
    mapped: bool = False

    def fingerprint(self) -> str:
        """The sha256 of the tokens; of a token file, of its type, length and first and last MiB, without reading the rest."""
        found = hashlib.sha256(f"{self.tokens.dtype.str} {self.tokens.size}".encode())
        raw = self.tokens.view(np.uint8)
        if self.mapped and raw.size > 2 * END_BYTES:
            found.update(raw[:END_BYTES].data)
            found.update(raw[-END_BYTES:].data)
        else:
            found.update(raw.data)
        return found.hexdigest()


def open_tokens(name: str, vocabulary: int, share: tuple[int, int] = (0, 1)) -> Source:
    """Open a source and check that every id is < vocabulary.

    `share` = (index, count): of the blocks of a token file this call looks at each count-th from the index-th, so that
    ranks divide the work; together they must look at all. Raises PlanError for a source that cannot be read or does not fit.
    """
    if name == "stdlib":
        return Source(name, _bytes(name, _library(), vocabulary))
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return Source(name, _bytes(name, _folder(path), vocabulary))
        if not path.is_file():
            remedy = 'use "stdlib", a text file, a folder of text or a .bin file'
            raise PlanError(f'data.source = "{name}" is neither a file nor a folder; {remedy}')
        if path.suffix == ".bin":
            tokens = _token_file(name, path, vocabulary)
            _fit(name, tokens, vocabulary, share)
            return Source(name, tokens, mapped=True)
        return Source(name, _bytes(name, [path], vocabulary))
    except OSError as e:
        raise PlanError(f'data.source = "{name}" cannot be read: {e.strerror} ({e.filename or path})') from None


def _bytes(name: str, files: list[Path], vocabulary: int) -> np.ndarray:
    """The bytes of the files, joined with a newline (N,) uint8."""
    if vocabulary < 256:
        raise PlanError(f'data.source = "{name}" gives bytes, 256 of them, for model.vocabulary = {vocabulary}; use vocabulary >= 256')
    return np.frombuffer(b"\n".join(path.read_bytes() for path in files), np.uint8)


def _library() -> list[Path]:
    """The modules of the standard library in the order of their names, without its tests."""
    return _files(Path(sysconfig.get_path("stdlib")), lambda name: name.endswith(".py"), NO_SOURCE)


def _folder(path: Path) -> list[Path]:
    """The files below a folder in the order of their names; hidden ones are left out."""
    files = _files(path, lambda name: not name.startswith("."), set())
    tokens = [f for f in files if f.suffix == ".bin"]
    if tokens:
        raise PlanError(f'data.source = "{path}" is a folder with {len(tokens)} token files; text is read from folders, name one .bin file')
    return files


def _files(top: Path, wanted: Callable[[str], bool], without: set[str]) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(top, onerror=_raise):
        folders[:] = [f for f in folders if f not in without and not f.startswith(".")]
        found += [Path(folder, name) for name in names if wanted(name) and Path(folder, name).is_file()]
    # By parts, not by the text of the path: "a/b" then stands before "a.py" whatever sign separates folders.
    return sorted(found, key=lambda path: path.relative_to(top).parts)


def _raise(error: OSError) -> None:
    raise error


def _token_file(name: str, path: Path, vocabulary: int) -> np.ndarray:
    """Map the ids of a .bin file (N,), uint16 or uint32."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = np.frombuffer(f.read(12), "<i4") if size >= HEADER_BYTES else np.zeros(3, "<i4")
    if int(head[0]) in HEADERS:
        magic, version, count = (int(x) for x in head)
        kind, versions = HEADERS[magic]
        if version not in versions:
            known = " or ".join(map(str, versions))
            raise PlanError(f'data.source = "{name}" has version {version} of magic {magic}, known is {known}; write it again with llm.c')
        start, expected = HEADER_BYTES, HEADER_BYTES + count * np.dtype(kind).itemsize
        if size != expected:
            raise PlanError(f'data.source = "{name}" has {size} bytes, its header says {count} tokens = {expected} bytes; write it again')
    else:
        kind, start = ("<u2" if vocabulary <= 1 << 16 else "<u4"), 0
        if size % np.dtype(kind).itemsize:
            why = f"no whole number of {np.dtype(kind).name}, the type for model.vocabulary = {vocabulary}"
            raise PlanError(f'data.source = "{name}" has {size} bytes, {why}; write it again')
        count = size // np.dtype(kind).itemsize
    if not count:
        return np.zeros(0, kind)
    return np.memmap(path, kind, "r", start, (count,))


def _fit(name: str, tokens: np.ndarray, vocabulary: int, share: tuple[int, int]) -> None:
    """Raise PlanError for the first id in this share of the blocks that is not below the vocabulary."""
    if vocabulary > np.iinfo(tokens.dtype).max:
        return  # the type cannot hold a larger one
    index, count = share
    for start in range(index * BLOCK, tokens.size, count * BLOCK):
        block = tokens[start : start + BLOCK]
        if int(block.max()) >= vocabulary:
            at = int(np.argmax(block >= vocabulary))
            raise PlanError(
                f'data.source = "{name}" holds id {int(block[at])} at token {start + at}, model.vocabulary = {vocabulary}; '
                f"use vocabulary > {int(block.max())} or another file"
            )
