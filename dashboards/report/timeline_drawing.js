// Draws the part of the timeline that is in view. What falls onto a pixel that is painted already
// is left out, so the time that it takes goes with the pixels and not with the slices.

const GUTTER = 128, HEAD = 46;

function colours(stages) {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const known = getComputedStyle(document.documentElement);
  const found = { ink: read("ink"), soft: read("soft"), line: read("line"), faint: read("faint"),
                  paper: read("paper"), lost: read("lost"), accent: read("accent") };
  found.stages = stages.map((stage) =>
    read(known.getPropertyValue(`--${stage}`) ? stage : "other"));
  probe.remove();
  return found;
}

function seconds(value) {
  const size = Math.abs(value);
  const three = (x) => String(Number(x.toPrecision(3)));
  if (size >= 7200) return `${three(value / 3600)} h`;
  if (size >= 120) return `${Math.floor(value / 60)} min ${three(value % 60)} s`;
  if (size >= 1 || size === 0) return `${three(value)} s`;
  return size >= 1e-3 ? `${three(value * 1e3)} ms` : `${three(value * 1e6)} µs`;
}

// A moment since the begin, as exact as the distance between marks asks for.
function moment(value, step) {
  const [unit, size] = step >= 1 ? ["s", 1] : step >= 1e-3 ? ["ms", 1e-3] : ["µs", 1e-6];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${(value / size).toFixed(Math.min(digits, 6))} ${unit}`;
}

function roundStep(span, most) {
  const raw = span / most, size = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * size).find((step) => step >= raw);
}

function fitted(brush, text, width) {
  if (width < 26) return "";
  if (brush.measureText(text).width <= width) return text;
  const kept = Math.floor(text.length * width / brush.measureText(text).width) - 1;
  return kept > 2 ? `${text.slice(0, kept)}…` : "";
}

function draw(view) {
  const { brush, about, columns, laid, width, height, from, to, scroll, paint } = view;
  const scale = (width - GUTTER) / (to - from);
  const x = (tick) => GUTTER + (tick - from) * scale;
  brush.font = "11px system-ui, sans-serif";
  brush.textBaseline = "middle";
  brush.fillStyle = paint.paper;
  brush.fillRect(0, 0, width, height);

  for (const row of laid.rows) {
    const y = HEAD + row.y - scroll;
    if (y + row.height < HEAD || y > height) continue;
    if (row.title !== undefined) {
      brush.fillStyle = paint.faint;
      brush.fillRect(0, y, width, row.height - 2);
      brush.fillStyle = paint.ink;
      brush.font = "600 11px system-ui, sans-serif";
      brush.fillText(row.title, 8, y + row.height / 2 - 1);
      brush.font = "11px system-ui, sans-serif";
      continue;
    }
    drawRow(view, row, y, x, scale);
    if (row.label) {
      brush.fillStyle = paint.soft;
      brush.fillText(row.label, 16, y + Math.max(6, row.height / 2));
    }
  }

  brush.fillStyle = paint.paper;
  brush.fillRect(0, 0, width, HEAD);
  drawAxis(view, x);
  drawBand(view, 18, columns.stepStart, columns.stepEnd, x, (i) =>
    [i % 2 ? paint.faint : paint.line, paint.ink, String(columns.stepNumber[i] - 1)]);
  if (columns.pathStart) {
    drawBand(view, 31, columns.pathStart, columns.pathEnd, x, (i) => {
      const stage = columns.pathStage[i];
      return [stage < about.stages.length - 1 ? paint.stages[stage] : paint.lost, paint.paper, ""];
    });
  }
  brush.fillStyle = paint.soft;
  brush.fillText("step", 8, 24);
  if (columns.pathStart) brush.fillText("critical path", 8, 37);
  brush.fillStyle = paint.line;
  brush.fillRect(0, HEAD - 1, width, 1);
  brush.fillRect(GUTTER - 1, 0, 1, height);
}

function drawRow(view, row, y, x, scale) {
  const { brush, about, columns, laid, from, to, width, paint, chosen } = view;
  const { start, end } = laid, tall = row.height - (row.height > 8 ? 2 : 1);
  let painted = GUTTER - 1;
  for (let i = firstAfter(end, row, from); i < row.last && start[i] < to; i++) {
    const left = Math.max(GUTTER, x(start[i]));
    const right = Math.min(width, Math.max(left + 1, x(end[i])));
    if (right < painted + 0.5) continue;
    brush.fillStyle = paint.stages[columns.stage[i]];
    brush.globalAlpha = columns.count[i] > 1 ? 0.62 : 1;
    const gap = right - left > 4 ? 0.5 : 0;
    brush.fillRect(left, y, right - left - gap, tall);
    brush.globalAlpha = 1;
    painted = right;
    if (columns.open[i]) {
      brush.fillStyle = paint.ink;
      brush.fillRect(right - 2, y, 2, tall);
    }
    if (i === chosen) {
      brush.strokeStyle = paint.ink;
      brush.lineWidth = 2;
      brush.strokeRect(left + 1, y + 1, Math.max(1, right - left - 2), tall - 2);
    }
    if (tall > 10 && right - left > 30) {
      const name = about.names[columns.name[i]] || about.stages[columns.stage[i]];
      brush.fillStyle = paint.paper;
      brush.fillText(fitted(brush, name, right - left - 8), left + 4, y + tall / 2 + 0.5);
    }
  }
}

function drawAxis(view, x) {
  const { brush, about, from, to, width, height, paint } = view;
  const unit = about.tick_ns / 1e9;
  const step = roundStep((to - from) * unit, Math.max(2, (width - GUTTER) / 110));
  for (let k = Math.ceil((from * unit) / step); k * step <= to * unit; k++) {
    const at = x((k * step) / unit);
    brush.fillStyle = paint.soft;
    brush.fillText(moment(k * step, step), at + 4, 9);
    brush.fillStyle = paint.line;
    brush.globalAlpha = 0.6;
    brush.fillRect(at, 0, 1, height);
    brush.globalAlpha = 1;
  }
}

function drawBand(view, y, start, end, x, look) {
  const { brush, from, to, width } = view;
  const row = { first: 0, last: start.length };
  let painted = GUTTER - 1;
  for (let i = firstAfter(end, row, from); i < start.length && start[i] < to; i++) {
    const left = Math.max(GUTTER, x(start[i])), right = Math.min(width, x(end[i]));
    if (right < painted + 0.5) continue;
    const [fill, ink, text] = look(i);
    brush.fillStyle = fill;
    brush.fillRect(left, y, Math.max(0.7, right - left - (right - left > 3 ? 1 : 0)), 11);
    painted = right;
    if (text && right - left > 6 + 7 * text.length) {
      brush.fillStyle = ink;
      brush.fillText(text, left + 4, y + 6);
    }
  }
}
