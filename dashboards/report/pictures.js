"use strict";
// What is pointed at in a picture is told by the row of its table that has the same number.

const tip = document.getElementById("tip");

function showTip(lines, x, y) {
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
  tip.style.top = `${y + height + 24 > innerHeight ? y - height - 12 : y + 16}px`;
}

function hideTip() {
  tip.hidden = true;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function rowLines(table, row) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const cells = [...table.tBodies[0].rows[row].cells].map((cell) => cell.textContent);
  const lines = [element("b", heads[0] === "step" ? `step ${cells[0]}` : cells[0])];
  for (let i = 1; i < cells.length; i++) {
    if (cells[i] === "" || cells[i] === "0 s") continue;
    const line = document.createElement("span");
    line.append(element("i", heads[i]), element("em", cells[i]));
    lines.push(line);
  }
  return lines;
}

for (const picture of document.querySelectorAll(".picture")) {
  const table = picture.parentElement.querySelector("table.numbers");
  const told = [...picture.querySelectorAll("[data-row]")];
  let at = -1;
  const mark = (n) => {
    if (at >= 0 && told[at]) told[at].classList.remove("at");
    at = n;
    if (n >= 0) told[n].classList.add("at");
  };
  picture.addEventListener("pointermove", (event) => {
    const hit = event.target.closest("[data-row]");
    if (!hit) return hideTip();
    showTip(rowLines(table, Number(hit.dataset.row)), event.clientX, event.clientY);
  });
  picture.addEventListener("pointerleave", hideTip);
  picture.addEventListener("blur", () => { mark(-1); hideTip(); });
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") { mark(-1); hideTip(); }
    if (!by || !told.length) return;
    event.preventDefault();
    mark((at + by + told.length) % told.length);
    const box = told[at].getBoundingClientRect();
    showTip(rowLines(table, Number(told[at].dataset.row)), box.left + box.width / 2, box.top + 8);
  });
}
