// The timeline under the pointer and the keys: zoom, move, point, choose.

function prepareTimeline(about, columns) {
  const frame = document.getElementById("timeline-frame");
  if (!frame || !about) return null;
  const rows = frame.querySelector(".rows"), canvas = frame.querySelector("canvas");
  const told = frame.querySelector(".told"), range = frame.querySelector(".range");
  const unit = about.tick_ns / 1e9, least = 40;
  const view = { brush: canvas.getContext("2d"), about, columns, laid: layOut(about, columns),
                 from: 0, to: about.ticks || 1, scroll: 0, chosen: -1, paint: null };
  const whole = view.to;
  let asked = false, active = false, drag = null;

  function size() {
    const ratio = window.devicePixelRatio || 1;
    const full = HEAD + view.laid.height + 4;
    rows.style.height = `${Math.min(full + 2, 480)}px`;
    view.width = rows.clientWidth;
    view.height = rows.clientHeight;
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(view.height * ratio);
    canvas.style.height = `${view.height}px`;
    view.brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    frame.querySelector(".spacer").style.height = `${Math.max(0, full - view.height)}px`;
  }

  function paint() {
    asked = false;
    view.scroll = rows.scrollTop;
    draw(view);
    range.textContent = `${seconds((view.to - view.from) * unit)} from ${seconds(view.from * unit)}`;
  }

  function repaint() {
    if (!asked) requestAnimationFrame(paint);
    asked = true;
  }

  function look(from, to) {
    const span = Math.min(whole, Math.max(least, to - from));
    view.from = Math.min(Math.max(0, from), whole - span);
    view.to = view.from + span;
    repaint();
  }

  const tickAt = (x) => view.from + ((x - GUTTER) / (view.width - GUTTER)) * (view.to - view.from);
  const zoom = (factor, x = GUTTER + (view.width - GUTTER) / 2) => {
    const at = tickAt(Math.max(GUTTER, x));
    look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  };
  const move = (share) => {
    const by = share * (view.to - view.from);
    look(view.from + by, view.to + by);
  };

  function showStep(place) {
    const step = Math.max(0, Math.min(columns.stepStart.length - 1, place));
    const pad = 0.04 * (columns.stepEnd[step] - columns.stepStart[step]);
    look(columns.stepStart[step] - pad, columns.stepEnd[step] + pad);
    frame.scrollIntoView({ block: "nearest" });
  }

  // From what is in view on to the next step, or back.
  function otherStep(by) {
    const middle = (view.from + view.to) / 2;
    let here = 0;
    while (here + 1 < columns.stepStart.length && columns.stepStart[here + 1] <= middle) here++;
    showStep(view.to - view.from >= whole ? (by > 0 ? 0 : columns.stepStart.length - 1) : here + by);
  }

  const doing = {
    in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => look(0, whole),
    before: () => otherStep(-1), next: () => otherStep(1),
  };
  for (const button of frame.querySelectorAll("[data-do]")) {
    if (/before|next/.test(button.dataset.do) && !columns.stepStart.length) button.remove();
    button.addEventListener("click", () => doing[button.dataset.do]());
  }

  function sliceAt(x, y) {
    if (x < GUTTER || y < HEAD) return -1;
    const tick = tickAt(x), slack = 2 * (view.to - view.from) / (view.width - GUTTER);
    for (const row of view.laid.rows) {
      const top = HEAD + row.y - view.scroll;
      if (row.first === undefined || y < top || y >= top + row.height) continue;
      const i = firstAfter(view.laid.end, row, tick - slack);
      return i < row.last && view.laid.start[i] <= tick + slack ? i : -1;
    }
    return -1;
  }

  function facts(i) {
    const count = columns.count[i], stage = about.stages[columns.stage[i]];
    const name = about.names[columns.name[i]] || stage;
    const row = view.laid.rows.find((one) => one.first <= i && i < one.last);
    const length = view.laid.end[i] - view.laid.start[i];
    const said = [count > 1 ? `${count} short ones, “${name}” first` : name];
    if (name !== stage) said.push(stage);
    said.push(`${seconds(length * unit)} from ${seconds(view.laid.start[i] * unit)}`);
    if (columns.open[i]) said.push("never ended");
    if (count > 1) said.push(`together ${seconds(columns.busy[i] * unit)}`);
    if (columns.step[i]) said.push(`step ${columns.step[i] - 1}`);
    if (columns.version[i]) said.push(`version ${columns.version[i] - 1}`);
    if (columns.tokens[i]) said.push(`${(columns.tokens[i] - 1).toLocaleString("en")} tokens`);
    said.push(about.processes[row.process], about.kinds[row.kind]);
    return said;
  }

  canvas.addEventListener("wheel", (event) => {
    if (!active && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (event.shiftKey) move(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), event.offsetX);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.focus();
    active = true;
    drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to,
             scroll: rows.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const x = event.clientX - drag.x, y = event.clientY - drag.y;
      drag.moved = drag.moved || Math.hypot(x, y) > 4;
      if (!drag.moved) return;
      canvas.classList.add("dragged");
      hideTip();
      const by = (x / (view.width - GUTTER)) * (drag.to - drag.from);
      look(drag.from - by, drag.to - by);
      rows.scrollTop = drag.scroll - y;
      return;
    }
    const i = sliceAt(event.offsetX, event.offsetY);
    if (i < 0) return hideTip();
    const [name, ...others] = facts(i);
    showTip([element("b", name), ...others.map((one) => element("span", one))],
            event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      view.chosen = sliceAt(event.offsetX, event.offsetY);
      told.textContent = view.chosen < 0 ? "" : facts(view.chosen).join(" · ");
      repaint();
    }
    drag = null;
    canvas.classList.remove("dragged");
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", () => { active = false; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, event.offsetX));
  const keys = {
    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15),
    ArrowUp: () => { rows.scrollTop -= 48; }, ArrowDown: () => { rows.scrollTop += 48; },
    "+": doing.in, "=": doing.in, "-": doing.out, 0: doing.all, Home: doing.all,
    "[": () => columns.stepStart.length && doing.before(),
    "]": () => columns.stepStart.length && doing.next(),
    Escape: () => { active = false; canvas.blur(); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  rows.addEventListener("scroll", repaint);

  function renew() {
    view.paint = colours(about.stages);
    size();
    paint();
  }
  renew();
  new ResizeObserver(() => { size(); repaint(); }).observe(frame);
  return { renew, showStep, view, look };
}
