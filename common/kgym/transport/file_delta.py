"""Binary deltas between similar files, such as a patched and an unpatched kernel.

Two links of one kernel contain the same code and debug information at other offsets, with other
addresses in it: no long run of bytes is equal, but most bytes of each run are. So the file is
divided into parts, each at a constant distance from the similar bytes of the base (aligned by
hashes of words that occur once in both files). Stored is the bytewise difference, nearly always 0,
deflated. A vmlinux of 144 MB takes 4 to 5 MB and some 2 s; `zstd --patch-from`, which copies equal
runs, takes 24 to 31 MB; bsdiff's method takes 2.6 MB and minutes.

    delta = head, deflated(parts, differences)
    head = magic, size and SHA-256 of the file, number of parts
    part = its end in the file, its distance: byte i is like byte i - distance of the base
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from kgym.errors import InfrastructureError

_HEAD = struct.Struct("<8sQ32sI")
_MAGIC = b"kgymdif1"
_PART = np.dtype([("end", "<u8"), ("distance", "<i8")])
_PIECE = 1 << 20
_LEVEL = 3  # of zlib: 6 takes a quarter less space, and twice the time
_MOST_PARTS = 1 << 19
# Maximum size of a file for which a delta is made: it is read into memory.
_MOST_SIZE = 1 << 30
# A delta larger than this share of its file is rejected.
_WORTH = 0.8
# If a file has more than _FEW marks, and less than this share of them match, the files are not
# similar: a gzip-compressed image, for which deflating the differences would waste a second.
_ALIKE, _FEW = 0.25, 1000
_GAP = 1 << 16
# One word in 2^6 is marked; in files larger than _LARGE, one in 2^8.
_SELDOM, _LARGE = (6, 8), 32 << 20

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]


def write(file: Path, sha256: str, base: Path, target: Path) -> bool:
    """Write the delta of `file` from `base` to `target`; return False if it is too large."""
    sizes = file.stat().st_size, base.stat().st_size
    if not min(sizes) or max(sizes) > _MOST_SIZE or sizes[0] > _bound(sizes[1]):
        return False
    # Not mapped: if another process truncates a mapped file, SIGBUS would kill this one.
    new, old = np.fromfile(file, np.uint8), np.fromfile(base, np.uint8)
    matches = _matches(new, old)
    if matches.marks > _FEW and len(matches.places) < _ALIKE * matches.marks:
        return False
    parts = _parts(new, old, matches)
    if len(parts) > _MOST_PARTS:
        return False
    deflate = zlib.compressobj(_LEVEL)
    with target.open("wb") as sink:
        sink.write(_HEAD.pack(_MAGIC, len(new), bytes.fromhex(sha256), len(parts)))
        sink.write(deflate.compress(parts.tobytes()))
        begin = 0
        for end, distance in parts.tolist():
            for start in range(begin, end, _PIECE):
                stop = min(end, start + _PIECE)
                like = _like(old, start - distance, stop - distance)
                sink.write(deflate.compress((new[start:stop] - like).tobytes()))
            begin = end
        sink.write(deflate.flush())
        sink.flush()
        os.fsync(sink.fileno())
        return sink.tell() < len(new) * _WORTH


def read(delta: Path, base: Path) -> Iterator[bytes]:
    """Yield the file in pieces; raise `artifact_damaged`, possibly only after the last piece."""
    with delta.open("rb") as source, base.open("rb") as old:
        head = source.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _damaged(delta, "it is cut short")
        magic, size, sha256, number = _HEAD.unpack(head)
        old_size = os.fstat(old.fileno()).st_size
        if magic != _MAGIC or number > _MOST_PARTS or size > _bound(old_size):
            raise _damaged(delta, "its head is invalid")
        stream = _Inflated(source, delta)
        parts = np.frombuffer(stream.read(number * _PART.itemsize), _PART).tolist()
        digest, at, part = hashlib.sha256(), 0, 0
        while at < size:
            stop = min(size, at + _PIECE)
            like = bytearray()
            while len(like) < stop - at:
                if part == len(parts):
                    raise _damaged(delta, "its parts end early")
                end, distance = parts[part]
                begin, until = at + len(like), min(end, stop)
                if until > begin:
                    like += _part(old.fileno(), begin - distance, until - distance, old_size)
                part += end <= stop
            difference = np.frombuffer(stream.read(stop - at), np.uint8)
            piece = (difference + np.frombuffer(like, np.uint8)).tobytes()
            digest.update(piece)
            yield piece
            at = stop
        if digest.digest() != sha256:
            raise _damaged(delta, "SHA-256 mismatch")


class _Inflated:
    """A reader of deflated data that inflates only as much as is read."""

    def __init__(self, source: BinaryIO, path: Path) -> None:
        self._source = source
        self._path = path
        self._inflate = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        inflated = bytearray()
        while len(inflated) < size:
            data = self._inflate.unconsumed_tail or self._source.read(_PIECE)
            try:
                got = self._inflate.decompress(data, size - len(inflated))
            except zlib.error as error:
                raise _damaged(self._path, str(error)) from error
            if not got and (self._inflate.eof or not data):
                raise _damaged(self._path, "it is cut short")
            inflated += got
        return bytes(inflated)


def _bound(base: int) -> int:
    """Return the maximum size of a file whose base has this size: a delta may be hostile."""
    return 4 * base + (1 << 26)


def _damaged(path: Path, why: str) -> InfrastructureError:
    return InfrastructureError("artifact_damaged", f"{path.name} cannot be read: {why}")


def _like(old: _Bytes, start: int, stop: int) -> _Bytes:
    """Return these bytes of the base, padded with 0 outside of it."""
    low, high = min(max(start, 0), len(old)), min(max(stop, 0), len(old))
    if (low, high) == (start, stop):
        return old[start:stop]
    whole = np.zeros(stop - start, np.uint8)
    if high > low:
        whole[low - start : high - start] = old[low:high]
    return whole


def _part(base: int, start: int, stop: int, size: int) -> bytes:
    """Return these bytes of an open file, padded with 0 outside of it."""
    low, high = min(max(start, 0), size), min(max(stop, 0), size)
    if high <= low:
        return bytes(stop - start)
    data = os.pread(base, high - low, low).ljust(high - low, b"\0")
    return bytes(low - start) + data + bytes(stop - high)


# --- alignment of the two files --------------------------------------------------------------


class _Matches(NamedTuple):
    """Matched offsets of the new file in order, and their distances from the base's.

    They are a part of the new file's `marks`.
    """

    places: _Numbers
    distances: _Numbers
    marks: int


def _parts(new: _Bytes, old: _Bytes, matches: _Matches) -> npt.NDArray[np.void]:
    places, distances, _ = matches
    ends = [len(new)]
    at = [0]
    if len(places):
        turns = np.flatnonzero(np.diff(distances)) + 1
        at = distances[np.concatenate(([0], turns))].tolist()
        ends = [
            _turn(new, old, places[turn - 1 : turn + 1].tolist(), before, after)
            for turn, before, after in zip(turns.tolist(), at, at[1:], strict=False)
        ]
        ends.append(len(new))
    return np.array(list(zip(ends, at, strict=True)), _PART)


def _matches(new: _Bytes, old: _Bytes) -> _Matches:
    seldom = _SELDOM[max(len(new), len(old)) > _LARGE]
    with ThreadPoolExecutor(1) as beside:
        of_base = beside.submit(_marks, old, seldom)
        places, words = _marks(new, seldom)
        old_places, old_words = of_base.result()
    marks = len(places)
    if not len(places) or not len(old_places):
        return _Matches(places[:0], places[:0], marks)
    nearest = np.searchsorted(old_words, words).clip(max=len(old_words) - 1)
    same = old_words[nearest] == words
    places, like = places[same], old_places[nearest[same]]
    order = np.argsort(places)
    places = places[order]
    distances = places - like[order]
    # A match with another distance than its neighbours is a coincidence.
    sure = np.zeros(len(places), bool)
    for step in (1, 2):
        equal = distances[step:] == distances[:-step]
        sure[step:] |= equal
        sure[:-step] |= equal
    return _Matches(places[sure], distances[sure], marks)


def _marks(data: _Bytes, seldom: int) -> tuple[_Numbers, npt.NDArray[np.uint64]]:
    """Return offsets selected by their content, and hashes of it, which are sorted and unique."""
    places, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for start in range(0, len(data), _PIECE << 2):
        for phase in range(start, start + 4):
            count = (min(_PIECE << 2, len(data) - phase) >> 2) + 2
            count = min(count, (len(data) - phase) >> 2)
            if count < 3:
                continue
            words = data[phase : phase + 4 * count].view("<u4")
            chosen = np.flatnonzero(words[:-2] * np.uint32(0x9E3779B1) >> (32 - seldom) == 1)
            first, second, third = (words[chosen + n].astype(np.uint64) for n in range(3))
            hashes.append(
                first * np.uint64(0x9E3779B97F4A7C15)
                ^ second * np.uint64(0xC2B2AE3D27D4EB4F)
                ^ third * np.uint64(0x165667B19E3779F9)
            )
            places.append(4 * chosen + phase)
    all_places, all_hashes = np.concatenate(places), np.concatenate(hashes)
    order = np.argsort(all_hashes)
    all_places, all_hashes = all_places[order], all_hashes[order]
    once = np.ones(len(all_places), bool)
    twice = all_hashes[1:] == all_hashes[:-1]
    once[1:] &= ~twice
    once[:-1] &= ~twice
    return all_places[once], all_hashes[once]


def _turn(new: _Bytes, old: _Bytes, between: list[int], before: int, after: int) -> int:
    """Return where, between two places, the second distance begins to fit better."""
    low, high = between
    low = max(low, high - _GAP)
    part = new[low:high]
    first = part == _like(old, low - before, high - before)
    second = part == _like(old, low - after, high - after)
    gain = np.cumsum(first.astype(np.int32) - second)
    best = int(np.argmax(gain))
    return low + best + 1 if gain[best] > 0 else low
