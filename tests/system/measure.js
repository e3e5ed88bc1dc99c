// What is wrong with how a page is laid out, as sentences: text that overlaps other text, is cut or
// broken, and a page that is wider than its window.
() => {
  const TOLERANCE = 1;
  const wrong = [];
  const width = document.documentElement.clientWidth;
  const page = document.scrollingElement;
  if (page.scrollWidth > width) wrong.push(`the page is ${page.scrollWidth} wide`);

  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const scrolls = (element) => element.closest("details .scroll");
  const words = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || !shown(parent) || parent.closest("script, style, .skip")) continue;
    if (scrolls(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const lines = [...range.getClientRects()].filter((box) => box.width > 0 && box.height > 0);
    const said = node.data.trim().slice(0, 40);
    for (const box of lines) {
      // A line's box is as high as its font: what is drawn is a little less.
      const trim = 0.15 * box.height;
      words.push({ said, parent, left: box.left, right: box.right, top: box.top + trim,
        bottom: box.bottom - trim });
      if (box.left < -TOLERANCE || box.right > width + TOLERANCE) wrong.push(`outside: ${said}`);
    }
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      if (getComputedStyle(at).overflowX === "visible") continue;
      const frame = at.getBoundingClientRect();
      if (lines.some((box) => box.right > frame.right + TOLERANCE || box.left < frame.left - TOLERANCE)) {
        wrong.push(`cut: ${said}`);
      }
    }
    if (!parent.closest("td, th, dd, dt")) continue;
    for (const word of node.data.matchAll(/[^\s-]+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) wrong.push(`broken: ${word[0]}`);
    }
  }
  words.sort((a, b) => a.top - b.top);
  words.forEach((one, n) => {
    for (let m = n + 1; m < words.length && words[m].top < one.bottom - TOLERANCE; m++) {
      const other = words[m];
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - other.top;
      if (across > TOLERANCE && down > TOLERANCE) wrong.push(`${one.said} | overlaps | ${other.said}`);
    }
  });
  for (const drawing of document.querySelectorAll("svg")) {
    if (!shown(drawing)) continue;
    const box = drawing.getBoundingClientRect();
    if (box.left < -TOLERANCE || box.right > width + TOLERANCE) wrong.push("a picture is cut");
  }
  return [...new Set(wrong)].slice(0, 20);
}
