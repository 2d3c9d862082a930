// Runs in a browser, which can read its own PNGs: pixels as places in a palette.
async (png) => {
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
}
