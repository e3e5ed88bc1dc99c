// What is there to be copied: selected too, so that it can be copied where a script may not.
for (const button of document.querySelectorAll(".copied button")) {
  const code = button.previousElementSibling;
  button.hidden = false;
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    const done = await Promise.resolve()
      .then(() => navigator.clipboard.writeText(code.textContent))
      .then(() => true, () => document.execCommand("copy"));
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// The page's theme, and where the reader is in its contents.

(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";

  function name() {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  addEventListener("beforeprint", () => {
    root.dataset.before = root.dataset.theme || "";
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (root.dataset.before) root.dataset.theme = root.dataset.before;
    else delete root.dataset.theme;
  });

  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) {
    links.set(document.querySelector(link.hash), link);
  }
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target);
    const first = [...links.keys()].find((section) => seen.has(section));
    for (const [section, link] of links) {
      if (section === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-10% 0px -60% 0px" });
  links.forEach((_, section) => observer.observe(section));

  name();
  root.dataset.ready = performance.now().toFixed(1);
})();
