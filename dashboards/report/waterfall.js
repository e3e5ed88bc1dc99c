// Another step than the mean in the picture of when each stage runs.

function prepareWaterfall(shapes, degrees, timeline) {
  const chooser = document.getElementById("step-chooser");
  const rows = document.getElementById("waterfall-rows");
  if (!chooser || !rows || !shapes) return;
  const mean = [...rows.children].map((group) => [...group.querySelectorAll("rect")]);
  const slider = chooser.querySelector("input");
  const output = chooser.querySelector("output");
  const buttons = [...chooser.querySelectorAll("button[data-step]")];
  const below = document.getElementById("waterfall-of"), ofMean = below.textContent;
  const go = chooser.querySelector(".go");
  const bars = [...document.querySelectorAll("#each-step .hit")];
  const { parts, left, right, top, row, seam } = shapes;
  const width = (right - left) / parts;
  let place = -1;

  function shades(step, n) {
    const drawn = [];
    const base = (step * shapes.stages.length + n) * parts;
    for (let a = 0; a < parts; ) {
      const degree = degrees[base + a];
      let b = a + 1;
      while (b < parts && degrees[base + b] === degree) b++;
      if (degree) {
        const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        rect.setAttribute("x", left + a * width);
        rect.setAttribute("y", top + n * row + 3);
        rect.setAttribute("width", (b - a) * width + seam);
        rect.setAttribute("height", row - 6);
        rect.setAttribute("class", `${shapes.stages[n]} m${degree}`);
        drawn.push(rect);
      }
      a = b;
    }
    return drawn;
  }

  function show(step) {
    [...rows.children].forEach((group, n) => {
      group.querySelectorAll("rect").forEach((rect) => rect.remove());
      group.append(...(step < 0 ? mean[n] : shades(step, n)));
    });
    place = step < 0 ? -1 : shapes.places[step];
    const name = step < 0 ? "the mean" : `step ${shapes.steps[step]}`;
    output.textContent = name;
    below.textContent = step < 0 ? ofMean : `of ${name}: ${shapes.lengths[step]}`;
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.step) === step));
    }
    if (step >= 0) slider.value = step;
    go.hidden = step < 0 || !timeline;
    bars.forEach((bar, n) => {
      bar.classList.toggle("chosen", place >= 0 && n === Math.floor(place / shapes.barSize));
    });
  }

  chooser.hidden = false;
  slider.addEventListener("input", () => show(Number(slider.value)));
  for (const button of buttons) {
    button.addEventListener("click", () => show(Number(button.dataset.step)));
  }
  go.addEventListener("click", () => timeline.showStep(place));
  bars.forEach((bar, n) => {
    bar.addEventListener("click", () => {
      const first = n * shapes.barSize;
      let nearest = 0;
      shapes.places.forEach((at, step) => {
        if (Math.abs(at - first) < Math.abs(shapes.places[nearest] - first)) nearest = step;
      });
      show(nearest);
    });
  });
}
