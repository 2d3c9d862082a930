"""PNGs of web pages made small: of at most 256 colours, about a quarter of what browsers write."""

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import TypedDict

from playwright.sync_api import Page

_READ = """async (png) => {
  const blob = await (await fetch("data:image/png;base64," + png)).blob();
  const image = await createImageBitmap(blob);
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawn = canvas.getContext("2d");
  drawn.drawImage(image, 0, 0);
  const bytes = drawn.getImageData(0, 0, image.width, image.height).data;
  const pixels = new Uint32Array(bytes.buffer);
  const runs = [];
  for (let from = 0, to = 0; from < pixels.length; from = to) {
    while (pixels[to] === pixels[from]) to += 1;
    runs.push([pixels[from], to - from]);
  }
  const counts = new Map();
  for (const [pixel, length] of runs) counts.set(pixel, (counts.get(pixel) ?? 0) + length);
  const parts = (colour) => [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  const palette = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, 256);
  const kept = palette.map(parts);
  const nearest = new Map(palette.map((colour, index) => [colour, index]));
  for (const colour of counts.keys()) {
    if (nearest.has(colour)) continue;
    const far = kept.map((one) => parts(colour).reduce((sum, v, i) => sum + (v - one[i]) ** 2, 0));
    nearest.set(colour, far.indexOf(Math.min(...far)));
  }
  let indexes = "";
  for (const [pixel, length] of runs) {
    indexes += String.fromCharCode(nearest.get(pixel)).repeat(length);
  }
  return { width: image.width, palette: kept, indexes: btoa(indexes) };
}"""
"""Runs in a browser, which can read its own PNGs: pixels as places in a palette."""


class _Pixels(TypedDict):
    width: int
    palette: list[list[int]]
    indexes: str


def small(png: bytes, blank: Page) -> bytes:
    """Return the PNG with its 256 most frequent colours; others become the nearest of these.

    `blank` is an empty tab of a browser, without a policy.
    """
    pixels: _Pixels = blank.evaluate(_READ, base64.b64encode(png).decode())
    width, indexes = pixels["width"], base64.b64decode(pixels["indexes"])
    height = len(indexes) // width
    # Each row begins with its filter: 0, none, which is best where pixels are places in a palette.
    rows = (b"\0" + indexes[at : at + width] for at in range(0, len(indexes), width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = bytes(part for colour in pixels["palette"] for part in colour)
    packed = zlib.compress(b"".join(rows), 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(header, colours, packed))


def _chunks(header: bytes, colours: bytes, packed: bytes) -> Iterator[bytes]:
    for kind, data in ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", packed), (b"IEND", b"")):
        yield struct.pack(">I", len(data)) + kind + data
        yield struct.pack(">I", zlib.crc32(kind + data))
