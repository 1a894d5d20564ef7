// Light or dark, as the page around the view is: JupyterLab says so on the body, VS Code by a class, else the system.

/** Whether a page is dark. `prefers-color-scheme` counts only where no host says anything: it is wrong in JupyterLab. */
export function isDark(body, systemIsDark) {
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.classList.contains("vscode-dark") || body.classList.contains("vscode-high-contrast")) return true;
  if (body.classList.contains("vscode-light")) return false;
  return systemIsDark;
}

/** Keep `data-theme` of the root right until the signal aborts. */
export function watchTheme(root, signal) {
  const { body } = document;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { root.dataset.theme = isDark(body, system.matches) ? "dark" : "light"; };
  const observer = new MutationObserver(apply);
  observer.observe(body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  system.addEventListener("change", apply, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  apply();
}
