// Sets the theme before the first paint. Runs as a plain script, so that nothing flashes.
(function () {
  let kept = null;
  try {
    kept = localStorage.getItem("endoscope-theme");
  } catch (error) {
    kept = null; // storage may be forbidden; the system's choice holds then
  }
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
