// The columns of the page, unpacked, and the timeline's slices by row.

async function unpack(columns) {
  const text = document.getElementById("data").textContent;
  const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const found = {};
  let at = 0;
  for (const [name, width, length] of columns) {
    const values = new { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[width](length);
    for (let plane = 0; plane < width; plane++, at += length) {
      const shift = 8 * plane;
      for (let i = 0; i < length; i++) values[i] += (bytes[at + i] << shift) >>> 0;
    }
    found[name] = values;
  }
  return found;
}

// Rows of the picture from above: a header for each process, then its rows of slices. Spans have
// room for their names; trajectories, verdicts and spans on very many lanes lie close.
function layOut(about, columns) {
  const start = new Uint32Array(columns.gap.length);
  const end = new Uint32Array(columns.gap.length);
  const rows = [];
  const many = new Map();
  for (const [of, kindOf] of about.rows) {
    many.set(`${of} ${kindOf}`, (many.get(`${of} ${kindOf}`) || 0) + 1);
  }
  let first = 0, process = -1, kind = -1, y = 0, least = 0;
  for (const [of, kindOf, length] of about.rows) {
    if (of !== process || kindOf !== kind) y = Math.max(y, least);
    if (of !== process) {
      y += process < 0 ? 0 : 6;
      rows.push({ title: about.processes[of], y, height: 19 });
      y += 19;
      kind = -1;
    }
    const dense = kindOf === 1 || kindOf === 2 || many.get(`${of} ${kindOf}`) > 10;
    if (kindOf !== kind && kind >= 0) y += 4;
    if (kindOf !== kind) least = y + 16;
    const height = dense ? 6 : 16;
    rows.push({ first, last: first + length, y, height, process: of,
                kind: kindOf, label: kindOf !== kind && kindOf ? about.kinds[kindOf] : "" });
    let time = 0;
    for (let i = first; i < first + length; i++) {
      start[i] = time += columns.gap[i];
      end[i] = time += columns.length[i];
    }
    first += length;
    y += height;
    process = of;
    kind = kindOf;
  }
  return { start, end, rows, height: y };
}

// The first slice of a row that ends after a moment; slices of a row do not overlap.
function firstAfter(end, row, moment) {
  let low = row.first, high = row.last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}
