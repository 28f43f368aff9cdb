// The theme switch, and which section the reader is in.

const THEME_KEY = "tiny-llama-report-theme";
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function currentTheme() {
  return document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light");
}

function connectTheme() {
  const button = document.getElementById("theme");
  const label = () => {
    const other = currentTheme() === "dark" ? "light" : "dark";
    button.setAttribute("aria-label", `switch to the ${other} theme`);
    button.title = `switch to the ${other} theme`;
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = currentTheme() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(THEME_KEY, document.documentElement.dataset.theme);
    } catch {
      // it then lasts as long as the page is open
    }
    label();
    refreshPlots();
  });
  systemDark.addEventListener("change", () => { label(); refreshPlots(); });
  label();
}

// The last section whose heading has passed the upper part of the window.
function connectContents() {
  const links = new Map([...document.querySelectorAll("#contents a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...links.keys()].map((id) => document.getElementById(id));
  let shown = null;
  const mark = () => {
    const passed = sections.filter((section) => section.getBoundingClientRect().top < innerHeight * 0.3);
    const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const current = isAtEnd ? sections[sections.length - 1] : passed[passed.length - 1] || sections[0];
    if (current === shown) return;
    shown = current;
    for (const [id, link] of links) {
      if (id === current.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const link = links.get(current.id);
    const list = link.closest("ol");
    if (list.scrollWidth > list.clientWidth) list.scrollTo({left: link.offsetLeft - 16});
  };
  let isWaiting = false;
  addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; mark(); });
  }, {passive: true});
  mark();
}

function connectWidth() {
  let width = innerWidth, timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(refreshPlots, 150);
  });
}
