// Sets the theme before the first paint. Runs as a plain script, so that nothing flashes.
(function () {
  let stored = null;
  try {
    stored = localStorage.getItem("endoscope-theme");
  } catch (error) {
    stored = null; // storage may be forbidden; then use the system's theme
  }
  const dark = stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
