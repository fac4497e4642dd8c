// Runs before anything is drawn, so that whoever chose dark never sees a flash of light.
(() => {
  let chosen = "";
  try {
    chosen = localStorage.getItem("zae-limiter-theme") || "";
  } catch {
    // Storage may be forbidden; then the system decides.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
