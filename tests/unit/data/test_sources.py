"""Token sources: text as bytes, token files as nanoGPT and llm.c write them, and what is refused."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from hpcpar.data import open_tokens, sources
from hpcpar.errors import PlanError


def llmc(path, ids, magic=20240520, version=1, dtype="<u2", count=None):
    """A token file of llm.c."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(ids, dtype).tobytes())
    return str(path)


def refused(*args, **more) -> str:
    with pytest.raises(PlanError) as e:
        open_tokens(*args, **more)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_the_standard_library_is_real_text_in_a_fixed_order():
    found = open_tokens("stdlib", 256)
    assert found.tokens.dtype == np.uint8 and found.tokens.size > 5_000_000
    text = found.tokens.tobytes()
    assert b"class JSONDecoder" in text and b"class TestCase" in text
    assert b"unittest.main()" not in text[: text.index(b"class JSONDecoder")]
    assert found.fingerprint() == open_tokens("stdlib", 300).fingerprint()


def test_the_library_leaves_out_tests_and_installed_packages():
    names = [path.parts for path in sources._library()]
    assert names == sorted(names)
    assert not any({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"} & set(parts) for parts in names)
    assert {"argparse.py", "decoder.py", "case.py"} <= {parts[-1] for parts in names}


def test_a_text_file_is_its_bytes(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("déjà\r\nvu\0".encode())
    assert open_tokens(str(file), 256).tokens.tobytes() == file.read_bytes()


def test_a_folder_is_joined_in_the_order_of_names(tmp_path):
    for name, text in {"b.txt": b"B", "a/z.txt": b"AZ", "a.txt": b"A", ".hidden": b"no", ".git/x": b"no", "Z": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    assert open_tokens(str(tmp_path), 256).tokens.tobytes() == b"\nAZ\nA\nB"


def test_an_empty_file_or_folder_has_no_tokens(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.bin").touch()
    (tmp_path / "f").mkdir()
    for name in ("a.txt", "a.bin", "f"):
        assert open_tokens(str(tmp_path / name), 256).tokens.size == 0


@pytest.mark.parametrize(("vocabulary", "dtype"), [(50257, "<u2"), (65536, "<u2"), (65537, "<u4"), (128256, "<u4")])
def test_nanogpt_files_are_raw(tmp_path, vocabulary, dtype):
    ids = np.random.default_rng(1).integers(0, min(vocabulary, 1 << 16), 3001)
    ids[-1] = vocabulary - 1
    file = tmp_path / "train.bin"
    ids.astype(dtype).tofile(file)
    found = open_tokens(str(file), vocabulary)
    assert found.tokens.dtype == np.dtype(dtype) and isinstance(found.tokens, np.memmap)
    assert np.array_equal(found.tokens, ids)


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4"), (20240801, 1, "<u4")])
def test_llmc_files_have_a_header(tmp_path, magic, version, dtype):
    ids = np.random.default_rng(1).integers(0, 50257, 777)
    name = llmc(tmp_path / "x.bin", ids, magic, version, dtype)
    found = open_tokens(name, 50257)
    assert found.tokens.dtype == np.dtype(dtype) and isinstance(found.tokens, np.memmap)
    assert np.array_equal(found.tokens, ids)
    # The header, not the vocabulary, says the type.
    assert np.array_equal(open_tokens(name, 200_000).tokens, ids)


def test_damaged_token_files_are_refused(tmp_path):
    said = refused(llmc(tmp_path / "a.bin", [1, 2, 3], count=4), 256)
    assert "1030 bytes" in said and "4 tokens = 1032 bytes" in said
    assert "version 2 of magic 20240520, known is 1" in refused(llmc(tmp_path / "b.bin", [1], version=2), 256)
    assert "version 3 of magic 20240801, known is 1 or 7" in refused(llmc(tmp_path / "b.bin", [1], 20240801, 3, "<u4"), 256)
    (tmp_path / "c.bin").write_bytes(b"abc")
    assert "3 bytes, no whole number of uint16" in refused(str(tmp_path / "c.bin"), 256)
    (tmp_path / "c.bin").write_bytes(b"abcdef")
    assert "6 bytes, no whole number of uint32" in refused(str(tmp_path / "c.bin"), 70000)


@pytest.mark.parametrize("at", [0, 9, 10, 24])
def test_an_id_that_does_not_fit_is_refused_with_its_place(tmp_path, monkeypatch, at):
    monkeypatch.setattr(sources, "BLOCK", 10)
    ids = np.full(25, 99)
    ids[at] = 100
    name = llmc(tmp_path / "x.bin", ids)
    assert f"id 100 at token {at}, model.vocabulary = 100" in refused(name, 100)
    assert open_tokens(name, 101).tokens[at] == 100
    # Ranks that divide the blocks: exactly one of them finds it.
    found = []
    for rank in range(2):
        try:
            open_tokens(name, 100, (rank, 2))
        except PlanError:
            found.append(rank)
    assert found == [at // 10 % 2]


def test_sources_that_cannot_be(tmp_path):
    assert "stdlib" in refused("stdlib", 255) and "vocabulary = 255" in refused("stdlib", 255)
    assert "neither a file nor a folder" in refused(str(tmp_path / "none.txt"), 256)
    np.zeros(4, "<u2").tofile(tmp_path / "x.bin")
    assert "1 token files" in refused(str(tmp_path), 256)


def test_a_file_without_permission_is_refused(tmp_path):
    """In a child, which gives up root's right to read everything after its imports."""
    code = """
import os, sys
from hpcpar.data import open_tokens
from hpcpar.errors import PlanError
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    open_tokens(sys.argv[1], 256)
except PlanError as e:
    print(e)
"""
    file = tmp_path / "a.txt"
    file.write_text("x")
    file.chmod(0)
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60)
    assert f'data.source = "{file}" cannot be read: Permission denied' in done.stdout, done.stderr


def test_fingerprints_tell_sources_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "END_BYTES", 100)
    ids = np.arange(1000)
    name = llmc(tmp_path / "x.bin", ids)
    before = open_tokens(name, 1000).fingerprint()
    os.utime(name, (0, 0))
    raw = tmp_path / "y.bin"
    ids.astype("<u2").tofile(raw)
    assert before == open_tokens(name, 1000).fingerprint() == open_tokens(str(raw), 1000).fingerprint()
    for at, same in [(0, False), (49, False), (50, True), (949, True), (950, False), (999, False)]:
        other = ids.copy()
        other[at] = 7 if at != 7 else 8
        assert (open_tokens(llmc(tmp_path / "z.bin", other), 1000).fingerprint() == before) == same, at
    assert open_tokens(llmc(tmp_path / "z.bin", [*ids, 1]), 1001).fingerprint() != before
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(1000))
    assert open_tokens(str(text), 256).fingerprint() == hashlib.sha256(b"|u1 1000" + bytes(1000)).hexdigest()
