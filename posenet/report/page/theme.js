// Dark and light: as the system says, until the reader chooses.

const THEME_KEY = "posenet-report-theme";

function presentTheme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function restoreTheme() {
  try {
    const kept = localStorage.getItem(THEME_KEY);
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch {
    // A browser may refuse storage to a page from the disk; the choice then lasts as long as the page.
  }
}

function toggleTheme() {
  const theme = presentTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // See restoreTheme.
  }
}
